//! Reading an archive into the content of a version: every picture is looked at whole, every label row parsed.
//! Blocking; runs on a thread of its own and hands pictures over one by one.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek};
use std::path::Path;

use bytes::Bytes;
use tokio::sync::mpsc::Sender;
use zip::ZipArchive;
use zip::result::ZipError;

use crate::domain::archive::{self, Declared, Entry};
use crate::domain::version::Content;
use crate::domain::yolo::{self, Item, Split};
use crate::domain::{Findings, labels, picture};

/// The largest text file (`data.yaml`, lists, labels) that is read.
const TEXT_BYTES_MAX: u64 = 64 << 20;
/// The bits of a Unix mode that say what an entry is, and those of a symbolic link.
const MODE_KIND: u32 = 0o170_000;
const MODE_LINK: u32 = 0o120_000;

/// A picture on its way to the blob store, with where it stands among all.
pub struct Handed {
    pub bytes: Bytes,
    pub digest: [u8; 32],
    pub done: usize,
    pub total: usize,
}

/// What came of an archive.
pub struct Read {
    pub class_names: Vec<String>,
    /// In the order of their names.
    pub contents: Vec<Content>,
    pub findings: Findings,
}

/// Reads an archive. With `skip_faulty`, faulty rows and pictures are left out; without, an archive that has any is
/// refused: `Err` holds the findings.
pub fn read(path: &Path, skip_faulty: bool, pictures: &Sender<Handed>) -> Result<Read, Findings> {
    let mut findings = Findings::default();
    match read_archive(path, &mut findings, pictures) {
        Some((class_names, contents)) => {
            let is_usable = contents.iter().any(|content| content.split == Split::Train);
            if !is_usable && findings.first_error().is_none() {
                findings.error(
                    "TRAIN_SPLIT_EMPTY",
                    "",
                    0,
                    "the train split has no pictures",
                );
            }
            if findings.first_error().is_some() && !(skip_faulty && is_usable) {
                return Err(findings);
            }
            note_leaks(&contents, &mut findings);
            Ok(Read {
                class_names,
                contents,
                findings,
            })
        }
        None => Err(findings),
    }
}

fn read_archive(
    path: &Path,
    findings: &mut Findings,
    pictures: &Sender<Handed>,
) -> Option<(Vec<String>, Vec<Content>)> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => {
            findings.error("ARCHIVE_UNREADABLE", "", 0, error.to_string());
            return None;
        }
    };
    let mut zip = match ZipArchive::new(BufReader::new(file)) {
        Ok(zip) => zip,
        Err(error) => {
            findings.error("ARCHIVE_UNREADABLE", "", 0, archive_words(path, &error));
            return None;
        }
    };
    let declared = declare(&mut zip, findings);
    let entries = archive::admit(&declared, findings);
    if findings.first_error().is_some() {
        return None;
    }
    let Some(description) = yolo::find_description(&entries, findings).cloned() else {
        let inner = entries
            .iter()
            .find(|entry| entry.path.to_lowercase().ends_with(".zip"));
        let message = match inner {
            Some(inner) => format!(
                "no data.yaml; the archive holds another archive ({})",
                inner.path
            ),
            None => "no data.yaml in the archive: it names the classes and the splits".to_owned(),
        };
        findings.error("DESCRIPTION_MISSING", "", 0, message);
        return None;
    };
    let text = read_text(&mut zip, &description, findings)?;
    let mut list_findings = Findings::default();
    let mut read_list = |entry: &Entry| read_text(&mut zip, entry, &mut list_findings);
    let layout = yolo::arrange(&entries, &description, &text, &mut read_list, findings);
    for finding in list_findings.kept() {
        findings.error(
            &finding.reason,
            &finding.file,
            finding.line,
            finding.message,
        );
    }
    let layout = layout?;
    let total = layout.items.len();
    let mut contents = Vec::with_capacity(total);
    for (done, item) in layout.items.iter().enumerate() {
        let Some((bytes, digest, content)) =
            read_item(&mut zip, item, layout.class_names.len(), findings)
        else {
            continue;
        };
        contents.push(content);
        // Nobody listens any more: the import was given up.
        pictures
            .blocking_send(Handed {
                bytes,
                digest,
                done: done + 1,
                total,
            })
            .ok()?;
    }
    contents.sort_by(|a, b| a.name.cmp(&b.name).then(a.split.cmp(&b.split)));
    Some((layout.class_names, contents))
}

fn archive_words(path: &Path, error: &ZipError) -> String {
    let begins_like_zip = File::open(path)
        .and_then(|mut file| {
            let mut magic = [0; 2];
            file.read_exact(&mut magic)?;
            Ok(&magic == b"PK")
        })
        .unwrap_or(false);
    if begins_like_zip {
        format!("the archive is damaged or incomplete: {error}")
    } else {
        "not a zip archive".to_owned()
    }
}

fn declare<R: std::io::Read + Seek>(
    zip: &mut ZipArchive<R>,
    findings: &mut Findings,
) -> Vec<Declared> {
    let mut declared = Vec::with_capacity(zip.len());
    for index in 0..zip.len() {
        match zip.by_index_raw(index) {
            Ok(entry) => declared.push(Declared {
                index,
                name: decode_name(entry.name_raw()),
                size_bytes: entry.size(),
                packed_bytes: entry.compressed_size(),
                is_folder: entry.is_dir(),
                is_link: entry
                    .unix_mode()
                    .is_some_and(|mode| mode & MODE_KIND == MODE_LINK),
                is_encrypted: entry.encrypted(),
            }),
            Err(error) => {
                let message = format!("the archive is damaged or incomplete: {error}");
                findings.error("ARCHIVE_UNREADABLE", "", 0, message);
                return declared;
            }
        }
    }
    declared
}

/// Names are UTF-8, or bytes of an old code page: then each byte becomes the Latin-1 character of its number, so
/// that a picture and its label still have the same name. (Whether the archive says which is not to be relied on.)
fn decode_name(raw: &[u8]) -> String {
    match std::str::from_utf8(raw) {
        Ok(name) => name.to_owned(),
        Err(_) => raw.iter().map(|byte| char::from(*byte)).collect(),
    }
}

fn read_entry<R: std::io::Read + Seek>(
    zip: &mut ZipArchive<R>,
    entry: &Entry,
    limit: u64,
) -> Result<Vec<u8>, String> {
    let file = zip
        .by_index(entry.index)
        .map_err(|error| error.to_string())?;
    // The declared size may lie: what is inflated is bounded too.
    let most = entry.size_bytes.min(limit);
    let mut bytes = Vec::with_capacity(usize::try_from(most).unwrap_or(0));
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!(
            "more than the {most} bytes that are declared or allowed"
        ));
    }
    Ok(bytes)
}

fn read_text<R: std::io::Read + Seek>(
    zip: &mut ZipArchive<R>,
    entry: &Entry,
    findings: &mut Findings,
) -> Option<String> {
    let bytes = match read_entry(zip, entry, TEXT_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(message) => {
            findings.error("ENTRY_UNREADABLE", &entry.path, 0, message);
            return None;
        }
    };
    match String::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) => {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
            let line = u32::try_from(line).unwrap_or(u32::MAX);
            findings.error("TEXT_NOT_UTF8", &entry.path, line, "the text is not UTF-8");
            None
        }
    }
}

fn read_item<R: std::io::Read + Seek>(
    zip: &mut ZipArchive<R>,
    item: &Item,
    class_count: usize,
    findings: &mut Findings,
) -> Option<(Bytes, [u8; 32], Content)> {
    let path = &item.picture.path;
    let bytes = match read_entry(zip, &item.picture, archive::ENTRY_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(message) => {
            findings.error("ENTRY_UNREADABLE", path, 0, message);
            return None;
        }
    };
    let seen = match picture::inspect(&bytes) {
        Ok(seen) => seen,
        Err((reason, message)) => {
            findings.error(reason, path, 0, message);
            return None;
        }
    };
    let labels = match &item.label {
        Some(label) => {
            let text = read_text(zip, label, findings)?;
            labels::parse(&text, &label.path, class_count, findings)
        }
        None => Vec::new(),
    };
    let digest = *blake3::hash(&bytes).as_bytes();
    let content = Content {
        name: path.clone(),
        split: item.split,
        width: seen.width,
        height: seen.height,
        size_bytes: bytes.len() as u64,
        digest,
        labels,
    };
    Some((Bytes::from(bytes), digest, content))
}

/// Says which pictures occur more than once: in two splits they make a validation flatter than it is.
fn note_leaks(contents: &[Content], findings: &mut Findings) {
    let mut first: HashMap<[u8; 32], &Content> = HashMap::new();
    for content in contents {
        match first.entry(content.digest) {
            std::collections::hash_map::Entry::Occupied(known) => {
                let known = known.get();
                let (reason, what) = if known.split == content.split {
                    ("PICTURE_TWICE", "the same picture as")
                } else {
                    (
                        "PICTURE_IN_TWO_SPLITS",
                        "in another split too, which flatters the validation:",
                    )
                };
                findings.note(reason, &content.name, 0, format!("{what} {}", known.name));
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(content);
            }
        }
    }
}
