//! The YOLO layout: `data.yaml` with class names and splits, pictures under `images`, labels under `labels`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_yaml::Value;

use super::Findings;
use super::archive::Entry;

/// Extensions of files that are taken for pictures.
const PICTURE_EXTENSIONS: [&str; 9] = [
    "jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "jfif",
];
/// Classes that a dataset may have, and characters of a class name.
const CLASSES_MAX: usize = 25_000;
const CLASS_NAME_MAX: usize = 200;
/// Characters of messages of the YAML reader that are passed on.
const MESSAGE_MAX: usize = 300;

/// Where a picture belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Split {
    Train,
    Val,
    Test,
}

impl Split {
    /// Every split, in the order they are shown.
    pub const ALL: [Self; 3] = [Self::Train, Self::Val, Self::Test];

    /// Returns how it is stored and called in `data.yaml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }

    /// Parses how it is stored.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|split| split.as_str() == text)
    }

    /// The names a split goes by, as a key of `data.yaml` or as a folder.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Train => &["train"],
            Self::Val => &["val", "valid", "validation"],
            Self::Test => &["test"],
        }
    }
}

/// One picture of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub picture: Entry,
    /// Its label file; none for a background picture.
    pub label: Option<Entry>,
    pub split: Split,
}

/// What an archive holds, by its names alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub class_names: Vec<String>,
    /// In the order of splits, then names.
    pub items: Vec<Item>,
}

/// Returns the entry that describes the dataset: the `data.yaml` nearest to the root, else the only YAML file.
pub fn find_description<'a>(entries: &'a [Entry], findings: &mut Findings) -> Option<&'a Entry> {
    let is_yaml = |entry: &&Entry| matches!(extension(&entry.path).as_str(), "yaml" | "yml");
    let mut found: Vec<&Entry> = entries.iter().filter(is_yaml).collect();
    let rank = |entry: &Entry| {
        let is_named = matches!(file_name(&entry.path), "data.yaml" | "data.yml");
        (!is_named, entry.path.matches('/').count())
    };
    found.sort_by_key(|entry| (rank(entry), entry.path.clone()));
    if let [first, others @ ..] = found.as_slice() {
        for other in others {
            let message = format!("a second description is left out; {} is read", first.path);
            findings.note("DESCRIPTION_TWICE", &other.path, 0, message);
        }
    }
    found.first().copied()
}

/// Reads `data.yaml` and sorts an archive's files into pictures, labels and splits. `read_list` returns the text of
/// an entry, for splits that are given as lists of files.
pub fn arrange(
    entries: &[Entry],
    description: &Entry,
    text: &str,
    read_list: &mut dyn FnMut(&Entry) -> Option<String>,
    findings: &mut Findings,
) -> Option<Layout> {
    let file = description.path.as_str();
    let yaml: Value = match serde_yaml::from_str(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        Ok(yaml) => yaml,
        Err(error) => {
            let line = error
                .location()
                .map_or(0, |at| u32::try_from(at.line()).unwrap_or(0));
            let message = error
                .to_string()
                .chars()
                .take(MESSAGE_MAX)
                .collect::<String>();
            findings.error("DESCRIPTION_MALFORMED", file, line, message);
            return None;
        }
    };
    let class_names = class_names(&yaml, file, findings)?;
    if yaml.get("download").is_some() {
        let message = "'download' is never run; everything has to be in the archive";
        findings.note("DOWNLOAD_IGNORED", file, 0, message);
    }
    let root = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let index = Index::new(entries);
    let mut items = Vec::new();
    let mut used = BTreeSet::new();
    for split in Split::ALL {
        for picture in index.pictures_of(split, &yaml, root, read_list, findings, file) {
            used.insert(picture.path.clone());
            items.push(Item {
                label: index.label_of(picture),
                picture: picture.clone(),
                split,
            });
        }
    }
    let unused = index
        .pictures
        .keys()
        .filter(|path| !used.contains(**path))
        .count();
    if unused > 0 {
        let message = format!("{unused} pictures are in no split and are left out");
        findings.note("PICTURES_WITHOUT_SPLIT", file, 0, message);
    }
    if !items.iter().any(|item| item.split == Split::Train) {
        let message = "the train split has no pictures: there is nothing to train on";
        findings.error("TRAIN_SPLIT_EMPTY", file, 0, message);
    }
    items.sort_by(|a, b| (a.split, &a.picture.path).cmp(&(b.split, &b.picture.path)));
    Some(Layout { class_names, items })
}

fn class_names(yaml: &Value, file: &str, findings: &mut Findings) -> Option<Vec<String>> {
    let refuse = |findings: &mut Findings, message: String| {
        findings.error("CLASS_NAMES_MALFORMED", file, 0, message);
    };
    let count = yaml
        .get("nc")
        .and_then(Value::as_u64)
        .and_then(|count| usize::try_from(count).ok());
    let names: Vec<String> = match (yaml.get("names"), count) {
        (Some(Value::Sequence(list)), _) => list.iter().map(text_of).collect::<Option<_>>()?,
        (Some(Value::Mapping(map)), _) => {
            let mut by_id = BTreeMap::new();
            for (id, name) in map {
                let number = id
                    .as_u64()
                    .or_else(|| id.as_str().and_then(|id| id.parse().ok()));
                let Some((number, name)) = number.zip(text_of(name)) else {
                    refuse(
                        findings,
                        format!("names: {id:?} is not a class id with a name"),
                    );
                    return None;
                };
                by_id.insert(number, name);
            }
            let is_dense = by_id.keys().copied().eq(0..by_id.len() as u64);
            if !is_dense {
                refuse(
                    findings,
                    "names: ids have to be 0, 1, 2 … without gaps".to_owned(),
                );
                return None;
            }
            by_id.into_values().collect()
        }
        (None, Some(count)) if (1..=CLASSES_MAX).contains(&count) => {
            let message = "there are no names; classes are called class_0, class_1 …";
            findings.note("CLASS_NAMES_MISSING", file, 0, message);
            (0..count).map(|id| format!("class_{id}")).collect()
        }
        _ => {
            refuse(
                findings,
                "names: a list or a map of class names is missing".to_owned(),
            );
            return None;
        }
    };
    if let Some(count) = count
        && count != names.len()
    {
        refuse(
            findings,
            format!("nc is {count}, but there are {} names", names.len()),
        );
        return None;
    }
    if names.is_empty() || names.len() > CLASSES_MAX {
        refuse(
            findings,
            format!("{} classes, 1 to {CLASSES_MAX} are taken", names.len()),
        );
        return None;
    }
    if let Some(name) = names
        .iter()
        .find(|name| name.chars().count() > CLASS_NAME_MAX)
    {
        let begin: String = name.chars().take(40).collect();
        refuse(
            findings,
            format!("the name '{begin}…' is longer than {CLASS_NAME_MAX} characters"),
        );
        return None;
    }
    Some(names)
}

/// Class names that YAML reads as numbers or booleans are meant as they are written.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is_true) => Some(if *is_true { "yes" } else { "no" }.to_owned()),
        _ => None,
    }
}

/// The archive's files, found by name.
struct Index<'a> {
    pictures: BTreeMap<&'a str, &'a Entry>,
    by_path: HashMap<String, &'a Entry>,
}

impl<'a> Index<'a> {
    fn new(entries: &'a [Entry]) -> Self {
        let is_picture =
            |entry: &&Entry| PICTURE_EXTENSIONS.contains(&extension(&entry.path).as_str());
        Self {
            pictures: entries
                .iter()
                .filter(is_picture)
                .map(|entry| (entry.path.as_str(), entry))
                .collect(),
            by_path: entries
                .iter()
                .map(|entry| (entry.path.clone(), entry))
                .collect(),
        }
    }

    /// The label file's path is the picture's with the last `images` folder turned into `labels` and its last
    /// extension into `.txt`; where there is no such folder it lies beside the picture.
    fn label_of(&self, picture: &Entry) -> Option<Entry> {
        let stem = picture
            .path
            .rsplit_once('.')
            .map_or(picture.path.as_str(), |(stem, _)| stem);
        let segments: Vec<&str> = stem.split('/').collect();
        let folder = segments[..segments.len() - 1]
            .iter()
            .rposition(|name| *name == "images");
        let path = match folder {
            Some(place) => {
                let mut renamed = segments.clone();
                renamed[place] = "labels";
                format!("{}.txt", renamed.join("/"))
            }
            None => format!("{stem}.txt"),
        };
        self.by_path.get(&path).map(|entry| (*entry).clone())
    }

    fn pictures_of(
        &self,
        split: Split,
        yaml: &Value,
        root: &str,
        read_list: &mut dyn FnMut(&Entry) -> Option<String>,
        findings: &mut Findings,
        file: &str,
    ) -> Vec<&'a Entry> {
        let given = split.names().iter().find_map(|name| yaml.get(*name));
        let places: Vec<String> = match given {
            Some(Value::String(place)) => vec![place.clone()],
            Some(Value::Sequence(list)) => list
                .iter()
                .filter_map(|place| place.as_str().map(str::to_owned))
                .collect(),
            // Without a key, the folders that splits usually have.
            None | Some(_) => {
                let usual = split.names().iter();
                return self.first_with_pictures(
                    usual.flat_map(|name| [format!("images/{name}"), format!("{name}/images")]),
                    root,
                );
            }
        };
        let base = yaml.get("path").and_then(Value::as_str).unwrap_or("");
        let mut found = Vec::new();
        for place in places {
            let here = self.resolve(&place, base, root, read_list, findings);
            if here.is_empty() {
                let message = format!("{}: nothing in the archive is at '{place}'", split.as_str());
                findings.note("SPLIT_NOT_FOUND", file, 0, message);
            }
            found.extend(here);
        }
        found
    }

    fn first_with_pictures(
        &self,
        places: impl Iterator<Item = String>,
        root: &str,
    ) -> Vec<&'a Entry> {
        places
            .map(|place| self.under(&join(root, &place)))
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    }

    /// A place is a folder or a list of files, told relative to `path`, to the description, or with leading
    /// parts of another machine's tree: the longest ending that is in the archive is meant.
    fn resolve(
        &self,
        place: &str,
        base: &str,
        root: &str,
        read_list: &mut dyn FnMut(&Entry) -> Option<String>,
        findings: &mut Findings,
    ) -> Vec<&'a Entry> {
        let whole = format!("{base}/{place}");
        for told in [whole.as_str(), place] {
            let segments: Vec<&str> = told
                .split(['/', '\\'])
                .filter(|part| !matches!(*part, "" | "." | ".."))
                .collect();
            for skipped in 0..segments.len() {
                let path = join(root, &segments[skipped..].join("/"));
                if let Some(list) = self.by_path.get(&path).filter(|_| path.ends_with(".txt")) {
                    let text = read_list(list).unwrap_or_default();
                    return self.listed(&text, &list.path, root, findings);
                }
                let found = self.under(&path);
                if !found.is_empty() {
                    return found;
                }
            }
        }
        Vec::new()
    }

    fn under(&self, folder: &str) -> Vec<&'a Entry> {
        let prefix = format!("{folder}/");
        let from = self.pictures.range(prefix.as_str()..);
        from.take_while(|(path, _)| path.starts_with(&prefix))
            .map(|(_, entry)| *entry)
            .collect()
    }

    fn listed(
        &self,
        text: &str,
        file: &str,
        root: &str,
        findings: &mut Findings,
    ) -> Vec<&'a Entry> {
        let mut found = Vec::new();
        for (index, row) in text.lines().enumerate() {
            let told = row.trim();
            if told.is_empty() {
                continue;
            }
            let segments: Vec<&str> = told
                .split(['/', '\\'])
                .filter(|part| !matches!(*part, "" | "." | ".."))
                .collect();
            let entry = (0..segments.len()).find_map(|skipped| {
                let path = join(root, &segments[skipped..].join("/"));
                self.pictures.get(path.as_str()).copied()
            });
            match entry {
                Some(entry) => found.push(entry),
                None => {
                    let line = u32::try_from(index + 1).unwrap_or(u32::MAX);
                    let message = format!("the picture '{told}' is not in the archive");
                    findings.error("PICTURE_NOT_FOUND", file, line, message);
                }
            }
        }
        found
    }
}

fn join(root: &str, path: &str) -> String {
    if root.is_empty() {
        path.to_owned()
    } else {
        format!("{root}/{path}")
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn extension(path: &str) -> String {
    let name = file_name(path);
    name.rsplit_once('.')
        .map_or_else(String::new, |(_, extension)| extension.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(paths: &[&str]) -> Vec<Entry> {
        let entry = |(index, path): (usize, &&str)| Entry {
            index,
            path: (*path).to_owned(),
            size_bytes: 1,
        };
        paths.iter().enumerate().map(entry).collect()
    }

    fn layout(paths: &[&str], yaml: &str) -> (Option<Layout>, Findings) {
        let mut findings = Findings::default();
        let entries = entries(paths);
        let description = find_description(&entries, &mut findings).unwrap().clone();
        let mut lists = |entry: &Entry| {
            Some(
                if entry.path.ends_with("train.txt") {
                    "./images/a.jpg\n"
                } else {
                    ""
                }
                .to_owned(),
            )
        };
        let layout = arrange(&entries, &description, yaml, &mut lists, &mut findings);
        (layout, findings)
    }

    fn splits(layout: &Layout) -> Vec<(&str, &str, bool)> {
        let item = |item: &Item| {
            let path = file_name(&item.picture.path).to_owned();
            (item.split.as_str(), path, item.label.is_some())
        };
        let rows: Vec<_> = layout.items.iter().map(item).collect();
        rows.into_iter()
            .map(|(split, path, labelled)| (split, &*path.leak(), labelled))
            .collect()
    }

    const NAMES: &str = "names: [cat, dog]\n";

    #[test]
    fn folders_give_splits_and_labels() {
        let (found, findings) = layout(
            &[
                "data.yaml",
                "images/train/a.jpg",
                "images/train/b.JPEG",
                "images/val/v.png",
                "labels/train/a.txt",
                "labels/val/v.txt",
            ],
            &format!("path: ../datasets/x\ntrain: images/train\nval: images/val\n{NAMES}"),
        );
        let found = found.unwrap();
        let expected = [
            ("train", "a.jpg", true),
            ("train", "b.JPEG", false),
            ("val", "v.png", true),
        ];
        assert_eq!(splits(&found), expected);
        assert_eq!(findings.count(), 0);
    }

    #[test]
    fn exports_with_foreign_roots_wrapping_folders_and_valid_are_understood() {
        let (found, _) = layout(
            &[
                "x/data.yaml",
                "x/train/images/a.jpg",
                "x/train/labels/a.txt",
                "x/valid/images/v.jpg",
            ],
            &format!("train: ../train/images\nval: ../valid/images\ntest: ../test/images\n{NAMES}"),
        );
        let expected = [("train", "a.jpg", true), ("val", "v.jpg", false)];
        assert_eq!(splits(&found.unwrap()), expected);
    }

    #[test]
    fn splits_may_be_lists_of_files() {
        let paths = [
            "data.yaml",
            "train.txt",
            "images/a.jpg",
            "images/c.jpg",
            "labels/a.txt",
        ];
        let (found, findings) = layout(&paths, &format!("train: train.txt\n{NAMES}"));
        assert_eq!(splits(&found.unwrap()), [("train", "a.jpg", true)]);
        assert_eq!(findings.kept()[0].reason, "PICTURES_WITHOUT_SPLIT");
    }

    #[test]
    fn only_the_last_images_folder_becomes_labels() {
        let paths = [
            "data.yaml",
            "images/images/train/a.b.jpg",
            "images/labels/train/a.b.txt",
            "labels/x",
        ];
        let (found, _) = layout(&paths, &format!("train: images/images/train\n{NAMES}"));
        assert_eq!(splits(&found.unwrap()), [("train", "a.b.jpg", true)]);
    }

    #[test]
    fn names_are_a_list_or_a_dense_map_and_agree_with_nc() {
        let paths = ["data.yaml", "images/train/a.jpg"];
        let names = |yaml: &str| layout(&paths, yaml).0.map(|layout| layout.class_names);
        assert_eq!(names("names: {0: cat, 1: 7}").unwrap(), ["cat", "7"]);
        assert_eq!(names("names: [yes, no]").unwrap(), ["yes", "no"]);
        assert_eq!(names("nc: 2").unwrap(), ["class_0", "class_1"]);
        for (yaml, words) in [
            ("names: {0: cat, 2: dog}", "without gaps"),
            ("nc: 3\nnames: [cat, dog]", "nc is 3"),
            ("train: images", "names: a list or a map"),
            ("names: []", "0 classes"),
            ("names: [a\n", ""),
        ] {
            let (found, findings) = layout(&paths, yaml);
            assert!(found.is_none(), "{yaml}");
            let error = findings.first_error().unwrap();
            assert!(error.message.contains(words), "{yaml}: {}", error.message);
            assert_eq!(error.file, "data.yaml");
        }
    }

    #[test]
    fn an_empty_train_split_is_refused() {
        let (_, findings) = layout(&["data.yaml", "images/val/a.jpg"], NAMES);
        assert_eq!(findings.first_error().unwrap().reason, "TRAIN_SPLIT_EMPTY");
    }
}
