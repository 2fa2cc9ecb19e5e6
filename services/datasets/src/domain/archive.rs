//! Which archives are read: safe names, bounded sizes. Rules follow the zip format's APPNOTE and the ways
//! archives have been used to attack importers.

use super::Findings;

/// Entries an archive may hold.
pub const ENTRIES_MAX: usize = 2_000_000;
/// The largest entry that is read, unpacked.
pub const ENTRY_BYTES_MAX: u64 = 512 << 20;
/// The largest archive, unpacked.
pub const TOTAL_BYTES_MAX: u64 = 1 << 40;
/// How much bigger than packed an entry may be, above a size where that matters.
pub const RATIO_MAX: u64 = 200;
const RATIO_FREE_BYTES: u64 = 1 << 20;

/// One entry as the archive's directory declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The place in the directory.
    pub index: usize,
    /// The name, decoded.
    pub name: String,
    pub size_bytes: u64,
    pub packed_bytes: u64,
    pub is_folder: bool,
    pub is_link: bool,
    pub is_encrypted: bool,
}

/// A file that may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub index: usize,
    /// Segments joined by `/`, none of them `.` or `..`.
    pub path: String,
    pub size_bytes: u64,
}

/// Returns the files of an archive that may be read, or refuses it. Nothing is unpacked for it.
pub fn admit(declared: &[Declared], findings: &mut Findings) -> Vec<Entry> {
    if declared.is_empty() {
        findings.error("ARCHIVE_EMPTY", "", 0, "the archive is empty");
        return Vec::new();
    }
    if declared.len() > ENTRIES_MAX {
        let message = format!("{} entries, at most {ENTRIES_MAX} are read", declared.len());
        findings.error("ARCHIVE_TOO_BIG", "", 0, message);
        return Vec::new();
    }
    let mut entries: Vec<Entry> = Vec::new();
    let mut total: u64 = 0;
    for entry in declared {
        let Some(path) = safe_path(&entry.name) else {
            let message =
                "unsafe path in the archive: it leads out of the folder it is unpacked in";
            findings.error("ARCHIVE_PATH_UNSAFE", &printable(&entry.name), 0, message);
            continue;
        };
        if entry.is_link {
            let message = "a link in the archive: only files and folders are read";
            findings.error("ARCHIVE_PATH_UNSAFE", &path, 0, message);
            continue;
        }
        if entry.is_folder || is_junk(&path) {
            continue;
        }
        if entry.is_encrypted {
            findings.error(
                "ARCHIVE_ENCRYPTED",
                &path,
                0,
                "the archive is password-protected",
            );
            return Vec::new();
        }
        total = total.saturating_add(entry.size_bytes);
        let ratio = entry.size_bytes / entry.packed_bytes.max(1);
        if entry.size_bytes > ENTRY_BYTES_MAX
            || total > TOTAL_BYTES_MAX
            || (entry.size_bytes > RATIO_FREE_BYTES && ratio > RATIO_MAX)
        {
            let message = format!(
                "{} bytes from {} packed: at most {ENTRY_BYTES_MAX} bytes a file, {TOTAL_BYTES_MAX} in all \
                 and {RATIO_MAX} times its packed size are read",
                entry.size_bytes, entry.packed_bytes
            );
            findings.error("ARCHIVE_TOO_BIG", &path, 0, message);
            return Vec::new();
        }
        entries.push(Entry {
            index: entry.index,
            path,
            size_bytes: entry.size_bytes,
        });
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path).then(b.index.cmp(&a.index)));
    // Of entries with one name the last written wins, as unpacking one after the other would have it.
    entries.dedup_by(|later, kept| {
        let is_same = later.path == kept.path;
        if is_same {
            let message = "the name occurs more than once; the last entry is taken";
            findings.note("ARCHIVE_NAME_TWICE", &kept.path, 0, message);
        }
        is_same
    });
    entries
}

/// Returns a name as a path inside the archive's folder, or nothing where it leads out of it.
fn safe_path(name: &str) -> Option<String> {
    let unix = name.replace('\\', "/");
    let is_absolute = unix.starts_with('/') || unix.as_bytes().get(1) == Some(&b':');
    if is_absolute || unix.contains('\0') {
        return None;
    }
    let mut segments = Vec::new();
    for segment in unix.split('/') {
        match segment {
            "" | "." => {}
            ".." => return None,
            other => segments.push(other),
        }
    }
    (!segments.is_empty()).then(|| segments.join("/"))
}

fn printable(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .take(200)
        .collect()
}

/// Files that operating systems and tools leave behind.
fn is_junk(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.starts_with("__MACOSX/")
        || path.contains("/__MACOSX/")
        || name.starts_with("._")
        || name.eq_ignore_ascii_case(".DS_Store")
        || name.eq_ignore_ascii_case("Thumbs.db")
        || name.eq_ignore_ascii_case("desktop.ini")
        || name.ends_with(".cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(index: usize, name: &str) -> Declared {
        Declared {
            index,
            name: name.to_owned(),
            size_bytes: 100,
            packed_bytes: 90,
            is_folder: false,
            is_link: false,
            is_encrypted: false,
        }
    }

    fn refused(declared: &[Declared]) -> String {
        let mut findings = Findings::default();
        admit(declared, &mut findings);
        findings.first_error().unwrap().reason.clone()
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        for name in [
            "../a.jpg",
            "a/../../b",
            "/etc/passwd",
            "C:\\a.jpg",
            "..\\a",
            "a\0b",
        ] {
            assert_eq!(refused(&[file(0, name)]), "ARCHIVE_PATH_UNSAFE", "{name}");
        }
        assert_eq!(
            refused(&[Declared {
                is_link: true,
                ..file(0, "a")
            }]),
            "ARCHIVE_PATH_UNSAFE"
        );
    }

    #[test]
    fn bombs_and_locked_and_empty_archives_are_refused() {
        let bomb = Declared {
            size_bytes: 1 << 30,
            packed_bytes: 1 << 20,
            ..file(0, "a")
        };
        assert_eq!(refused(&[bomb]), "ARCHIVE_TOO_BIG");
        let dense = Declared {
            size_bytes: 300 << 20,
            packed_bytes: 1 << 20,
            ..file(0, "a")
        };
        assert_eq!(refused(&[dense]), "ARCHIVE_TOO_BIG");
        let locked = Declared {
            is_encrypted: true,
            ..file(0, "a")
        };
        assert_eq!(refused(&[locked]), "ARCHIVE_ENCRYPTED");
        assert_eq!(refused(&[]), "ARCHIVE_EMPTY");
    }

    #[test]
    fn backslashes_separate_and_junk_is_left_out() {
        let mut findings = Findings::default();
        let entries = admit(
            &[
                file(0, "images\\train\\a.jpg"),
                file(1, "__MACOSX/images/._a.jpg"),
                file(2, "./labels//train/a.txt"),
                file(3, ".DS_Store"),
            ],
            &mut findings,
        );
        let paths: Vec<_> = entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["images/train/a.jpg", "labels/train/a.txt"]);
        assert_eq!(findings.count(), 0);
    }

    #[test]
    fn of_entries_with_one_name_the_last_wins_and_it_is_said() {
        let mut findings = Findings::default();
        let entries = admit(&[file(0, "a.txt"), file(1, "a.txt")], &mut findings);
        assert_eq!((entries.len(), entries[0].index), (1, 1));
        assert_eq!(findings.kept()[0].reason, "ARCHIVE_NAME_TWICE");
    }
}
