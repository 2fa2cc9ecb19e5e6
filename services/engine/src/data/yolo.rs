//! Reads a data set in the YOLO layout: `data.yaml`, image folders or lists, and label files beside them.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use rayon::prelude::*;
use serde_yaml::Value;

use super::decode::{self, Source};
use super::labels::{self, LABEL_BYTES_MAX};
use super::{Dataset, Sample};
use crate::{Error, Result};

/// File name endings of images, also of those this build refuses by content.
const IMAGE_ENDINGS: [&str; 13] = [
    "avif", "bmp", "dng", "heic", "heif", "jp2", "jpeg", "jpg", "mpo", "png", "tif", "tiff", "webp",
];
/// The most images of a split.
pub const IMAGES_MAX: usize = 10_000_000;
/// How deep folders of images may be nested.
const DEPTH_MAX: usize = 32;
/// The largest `data.yaml` and the largest list of images.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// What to do with an image or label file that breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strictness {
    /// Refuse the data set, naming file, line and rule.
    Refuse,
    /// Leave the image out, count it and say why.
    #[default]
    LeaveOut,
}

/// What reading a data set found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Images found, also those left out.
    pub images: usize,
    /// Images without a label file, which count as background.
    pub unlabelled: usize,
    /// Label rows that were said before in the same file.
    pub duplicates: usize,
    /// Boxes without area.
    pub empty_boxes: usize,
    /// Images left out: place and rule.
    pub left_out: Vec<(String, String)>,
    /// What was taken another way than written, in words.
    pub notes: Vec<String>,
}

/// Reads the data set described by `path`: a YAML file, or a folder that holds one.
pub fn open(path: &Path, strictness: Strictness) -> Result<(Dataset, Report)> {
    let yaml = find_description(path)?;
    let mut report = Report::default();
    let description = Description::read(&yaml, &mut report)?;
    let mut dataset = Dataset {
        classes: description.classes.clone(),
        ..Dataset::default()
    };
    dataset.train = description.split(&description.train, strictness, &mut report)?;
    dataset.val = description.split(&description.val, strictness, &mut report)?;
    dataset.test = description.split(&description.test, strictness, &mut report)?;
    for (name, samples) in [("train", &dataset.train), ("val", &dataset.val)] {
        if samples.is_empty() {
            return Err(description.refuse(format!("the {name} split holds no usable image")));
        }
    }
    Ok((dataset, report))
}

fn find_description(path: &Path) -> Result<PathBuf> {
    let place = path.display().to_string();
    let metadata = std::fs::metadata(path).map_err(Error::io(&place))?;
    if metadata.is_file() {
        if ending(path).is_some_and(|ending| ending == "yaml" || ending == "yml") {
            return Ok(path.to_owned());
        }
        let rule = "a data set is named by its data.yaml or the folder that holds it".into();
        return Err(Error::Data { place, rule });
    }
    let mut yamls: Vec<PathBuf> = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(path).map_err(Error::io(&place))? {
        let entry = entry.map_err(Error::io(&place))?.path();
        if entry.is_dir() {
            folders.push(entry);
        } else if ending(&entry).is_some_and(|ending| ending == "yaml" || ending == "yml") {
            yamls.push(entry);
        }
    }
    if let Some(named) = yamls
        .iter()
        .find(|yaml| yaml.file_stem() == Some(OsStr::new("data")))
    {
        return Ok(named.clone());
    }
    match (&yamls[..], &folders[..]) {
        ([only], _) => Ok(only.clone()),
        // Archives often wrap everything in one folder.
        ([], [only]) if only.file_name() != Some(OsStr::new("images")) => find_description(only),
        ([], _) => Err(Error::Data {
            place,
            rule: "no data.yaml in the folder".into(),
        }),
        _ => Err(Error::Data {
            place,
            rule: "several YAML files and none called data.yaml: name the one to use".into(),
        }),
    }
}

/// A parsed `data.yaml`.
struct Description {
    place: String,
    /// Folders against which entries are resolved, most likely first.
    roots: Vec<PathBuf>,
    classes: Vec<String>,
    train: Vec<PathBuf>,
    val: Vec<PathBuf>,
    test: Vec<PathBuf>,
}

impl Description {
    fn read(yaml: &Path, report: &mut Report) -> Result<Self> {
        let place = yaml.display().to_string();
        let text = read_text(yaml)?;
        let value: Value = serde_yaml::from_str(&text).map_err(|error| Error::Data {
            place: place.clone(),
            rule: format!("not valid YAML: {error}"),
        })?;
        let folder = yaml.parent().unwrap_or(Path::new(".")).to_owned();
        let mut roots = Vec::new();
        if let Some(root) = value.get("path").and_then(Value::as_str) {
            let root = folder.join(root);
            if root.is_dir() {
                roots.push(root);
            } else {
                report.notes.push(format!(
                    "{place}: path '{}' is no folder here; entries are looked up beside the file",
                    root.display()
                ));
            }
        }
        roots.push(folder);
        let mut description = Self {
            classes: Vec::new(),
            place,
            roots,
            train: Vec::new(),
            val: Vec::new(),
            test: Vec::new(),
        };
        description.classes = description.read_classes(&value)?;
        description.check_channels(&value)?;
        description.train = description.entries(&value, &["train"], true, report)?;
        description.val =
            description.entries(&value, &["val", "validation", "valid"], true, report)?;
        description.test = description.entries(&value, &["test"], false, report)?;
        Ok(description)
    }

    fn refuse(&self, rule: String) -> Error {
        Error::Data {
            place: self.place.clone(),
            rule,
        }
    }

    fn read_classes(&self, value: &Value) -> Result<Vec<String>> {
        let count = match value.get("nc") {
            None | Some(Value::Null) => None,
            Some(number) => Some(
                number
                    .as_u64()
                    .filter(|&count| count > 0)
                    .ok_or_else(|| self.refuse("nc is a whole number from 1".into()))?
                    as usize,
            ),
        };
        let names = match value.get("names") {
            None | Some(Value::Null) => None,
            Some(Value::Sequence(names)) => Some(
                names
                    .iter()
                    .map(|name| self.class_name(name))
                    .collect::<Result<Vec<_>>>()?,
            ),
            Some(Value::Mapping(map)) => {
                let mut names = vec![None; map.len()];
                for (key, name) in map {
                    let index = match key {
                        Value::String(text) => text.parse::<usize>().ok(),
                        other => other.as_u64().map(|index| index as usize),
                    };
                    let slot = index
                        .and_then(|index| names.get_mut(index))
                        .ok_or_else(|| {
                            self.refuse(format!(
                                "names: keys are 0 to {} without gaps",
                                map.len() - 1
                            ))
                        })?;
                    *slot = Some(self.class_name(name)?);
                }
                // As many distinct keys as places, all inside: every place is taken, unless "0" and 0 both occur.
                names.into_iter().collect::<Option<Vec<_>>>().map_or_else(
                    || Err(self.refuse("names: a class number occurs twice".into())),
                    |names| Ok(Some(names)),
                )?
            }
            Some(_) => return Err(self.refuse("names is a list or a map of class names".into())),
        };
        match (names, count) {
            (Some(names), _) if names.is_empty() => Err(self.refuse("names holds no class".into())),
            (Some(names), Some(count)) if names.len() != count => Err(self.refuse(format!(
                "nc is {count} and names holds {}: they must be equal",
                names.len()
            ))),
            (Some(names), _) => Ok(names),
            (None, Some(count)) => Ok((0..count).map(|index| format!("class_{index}")).collect()),
            (None, None) => Err(self.refuse("names (or nc) is missing".into())),
        }
    }

    fn class_name(&self, value: &Value) -> Result<String> {
        match value {
            Value::String(name) => Ok(name.clone()),
            Value::Number(number) => Ok(number.to_string()),
            Value::Bool(flag) => Ok(flag.to_string()),
            _ => Err(self.refuse("names: a class name is text".into())),
        }
    }

    fn check_channels(&self, value: &Value) -> Result<()> {
        match value.get("channels").map(Value::as_u64) {
            None | Some(Some(3)) => Ok(()),
            Some(_) => Err(self.refuse("channels: pictures are RGB, so 3".into())),
        }
    }

    fn entries(
        &self,
        value: &Value,
        keys: &[&str],
        required: bool,
        report: &mut Report,
    ) -> Result<Vec<PathBuf>> {
        let key = keys[0];
        let found = keys
            .iter()
            .find_map(|key| value.get(*key).filter(|value| !value.is_null()));
        let texts: Vec<&str> = match found {
            None if required => {
                return Err(self.refuse(format!("{key} is missing: train and val are required")));
            }
            None => Vec::new(),
            Some(Value::String(text)) => vec![text],
            Some(Value::Sequence(items)) => items
                .iter()
                .map(|item| {
                    item.as_str()
                        .ok_or_else(|| self.refuse(format!("{key}: entries are paths")))
                })
                .collect::<Result<_>>()?,
            Some(_) => return Err(self.refuse(format!("{key} is a path or a list of paths"))),
        };
        let mut paths = Vec::with_capacity(texts.len());
        for text in texts {
            match self.resolve(text) {
                Some((path, exact)) => {
                    if !exact {
                        report.notes.push(format!(
                            "{}: {key} '{text}' was taken as {}",
                            self.place,
                            path.display()
                        ));
                    }
                    paths.push(path);
                }
                None if required => {
                    return Err(self.refuse(format!("{key}: there is no '{text}'")));
                }
                None => report.notes.push(format!(
                    "{}: {key} '{text}' does not exist and is ignored",
                    self.place
                )),
            }
        }
        Ok(paths)
    }

    /// Finds an entry, and tells whether it is what was written: descriptions travel between machines with paths
    /// of the old one, or start at a folder beside the one they were packed in.
    fn resolve(&self, text: &str) -> Option<(PathBuf, bool)> {
        let text = text.replace('\\', "/");
        for root in &self.roots {
            // Joining an absolute path gives that path.
            let path = root.join(&text);
            if path.exists() {
                return Some((path, true));
            }
        }
        let parts: Vec<&OsStr> = Path::new(&text)
            .components()
            .filter_map(|part| match part {
                Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        for skipped in 0..parts.len() {
            let tail: PathBuf = parts[skipped..].iter().collect();
            if let Some(path) = self
                .roots
                .iter()
                .map(|root| root.join(&tail))
                .find(|path| path.exists())
            {
                return Some((path, false));
            }
        }
        None
    }

    fn split(
        &self,
        entries: &[PathBuf],
        strictness: Strictness,
        report: &mut Report,
    ) -> Result<Vec<Sample>> {
        let mut images = Vec::new();
        for entry in entries {
            if entry.is_dir() {
                list_images(entry, 0, &mut images)?;
            } else {
                self.list_file(entry, &mut images)?;
            }
        }
        images.sort();
        images.dedup();
        let outcomes: Vec<Result<Read>> = images
            .par_iter()
            .map(|image| self.read_sample(image))
            .collect();
        let mut samples = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            report.images += 1;
            match outcome {
                Ok(read) => {
                    report.unlabelled += usize::from(read.unlabelled);
                    report.duplicates += read.duplicates;
                    report.empty_boxes += read.empty_boxes;
                    samples.push(read.sample);
                }
                Err(Error::Data { place, rule }) if strictness == Strictness::LeaveOut => {
                    report.left_out.push((place, rule));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(samples)
    }

    fn list_file(&self, list: &Path, images: &mut Vec<PathBuf>) -> Result<()> {
        if ending(list).is_some_and(|ending| IMAGE_ENDINGS.contains(&ending.as_str())) {
            images.push(list.to_owned());
            return Ok(());
        }
        let folder = list.parent().unwrap_or(Path::new("."));
        for line in read_text(list)?.lines().map(str::trim) {
            if line.is_empty() {
                continue;
            }
            let beside = folder.join(line);
            let path = if line.starts_with("./") || beside.exists() {
                beside
            } else {
                self.resolve(line).map_or(beside, |(path, _)| path)
            };
            push_image(path, images)?;
        }
        Ok(())
    }

    fn read_sample(&self, image: &Path) -> Result<Read> {
        let name = self.name_of(image);
        let source = Source::File(image.to_owned());
        decode::dimensions(&name, &source)?;
        let label_path = label_path(image);
        let mut read = Read {
            sample: Sample {
                name,
                source,
                labels: Vec::new(),
            },
            unlabelled: false,
            duplicates: 0,
            empty_boxes: 0,
        };
        let bytes = match std::fs::metadata(&label_path) {
            Ok(metadata) if metadata.len() > LABEL_BYTES_MAX => {
                return Err(Error::Data {
                    place: self.name_of(&label_path),
                    rule: format!("a label file may have {LABEL_BYTES_MAX} bytes"),
                });
            }
            Ok(_) => {
                std::fs::read(&label_path).map_err(Error::io(label_path.display().to_string()))?
            }
            Err(_) => {
                read.unlabelled = true;
                return Ok(read);
            }
        };
        let parsed = labels::parse(&bytes, self.classes.len()).map_err(|refusal| {
            let place = self.name_of(&label_path);
            Error::Data {
                place: match refusal.line {
                    0 => place,
                    line => format!("{place}:{line}"),
                },
                rule: refusal.rule,
            }
        })?;
        read.sample.labels = parsed.labels;
        read.duplicates = parsed.duplicates;
        read.empty_boxes = parsed.empty_boxes;
        Ok(read)
    }

    /// Returns the path inside the data set, with forward slashes.
    fn name_of(&self, path: &Path) -> String {
        let inside = self
            .roots
            .iter()
            .find_map(|root| path.strip_prefix(root).ok())
            .unwrap_or(path);
        inside.to_string_lossy().replace('\\', "/")
    }
}

struct Read {
    sample: Sample,
    unlabelled: bool,
    duplicates: usize,
    empty_boxes: usize,
}

/// Returns where an image's labels are: the last folder called `images` becomes `labels`, the ending `.txt`.
pub fn label_path(image: &Path) -> PathBuf {
    let parts: Vec<Component<'_>> = image.components().collect();
    let folder = parts
        .iter()
        .rposition(|part| part.as_os_str() == "images")
        .filter(|&index| index + 1 < parts.len());
    let path: PathBuf = parts
        .iter()
        .enumerate()
        .map(|(index, part)| {
            if Some(index) == folder {
                OsStr::new("labels")
            } else {
                part.as_os_str()
            }
        })
        .collect();
    path.with_extension("txt")
}

fn list_images(folder: &Path, depth: usize, images: &mut Vec<PathBuf>) -> Result<()> {
    let place = folder.display().to_string();
    if depth > DEPTH_MAX {
        let rule = format!("folders of images may be {DEPTH_MAX} deep");
        return Err(Error::Data { place, rule });
    }
    for entry in std::fs::read_dir(folder).map_err(Error::io(&place))? {
        let path = entry.map_err(Error::io(&place))?.path();
        if path.is_dir() {
            list_images(&path, depth + 1, images)?;
        } else if ending(&path).is_some_and(|ending| IMAGE_ENDINGS.contains(&ending.as_str())) {
            push_image(path, images)?;
        }
    }
    Ok(())
}

fn push_image(path: PathBuf, images: &mut Vec<PathBuf>) -> Result<()> {
    if images.len() == IMAGES_MAX {
        return Err(Error::Data {
            place: path.display().to_string(),
            rule: format!("a split may have {IMAGES_MAX} images"),
        });
    }
    images.push(path);
    Ok(())
}

fn ending(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

fn read_text(path: &Path) -> Result<String> {
    let place = path.display().to_string();
    let size = std::fs::metadata(path).map_err(Error::io(&place))?.len();
    if size > TEXT_BYTES_MAX {
        let rule = format!("a text file may have {TEXT_BYTES_MAX} bytes");
        return Err(Error::Data { place, rule });
    }
    let bytes = std::fs::read(path).map_err(Error::io(&place))?;
    let text = String::from_utf8(bytes).map_err(|error| Error::Data {
        place,
        rule: format!(
            "not UTF-8 text at byte {}",
            error.utf8_error().valid_up_to()
        ),
    })?;
    Ok(text
        .strip_prefix('\u{feff}')
        .map(str::to_owned)
        .unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write_image(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::new(32, 16).save(path).unwrap();
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Two training images, one of them without labels, and one validation image.
    fn small_set(yaml: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["train/b", "train/a", "val/v"] {
            write_image(&root.join(format!("images/{name}.png")));
        }
        write(&root.join("labels/train/a.txt"), "0 .5 .5 .2 .2\n");
        write(&root.join("labels/val/v.txt"), "1 .5 .5 .2 .2\n");
        write(&root.join("data.yaml"), yaml);
        folder
    }

    const PLAIN: &str = "train: images/train\nval: images/val\nnames: {0: cat, 1: dog}\n";

    #[test]
    fn a_plain_set_is_read_sorted_with_its_backgrounds() {
        let folder = small_set(PLAIN);
        let (dataset, report) = open(folder.path(), Strictness::Refuse).unwrap();
        assert_eq!(dataset.classes, ["cat", "dog"]);
        let names: Vec<_> = dataset
            .train
            .iter()
            .map(|sample| &sample.name[..])
            .collect();
        assert_eq!(names, ["images/train/a.png", "images/train/b.png"]);
        assert_eq!((dataset.val.len(), dataset.test.len()), (1, 0));
        assert_eq!((report.images, report.unlabelled), (3, 1));
    }

    #[test]
    fn names_may_be_a_list_or_only_a_count() {
        for (yaml, classes) in [
            ("names: [yes, 'no']", ["yes", "no"]),
            ("nc: 2", ["class_0", "class_1"]),
            ("nc: 2\nnames: [7, true]", ["7", "true"]),
        ] {
            let folder = small_set(&format!("train: images/train\nval: images/val\n{yaml}\n"));
            let (dataset, _) = open(folder.path(), Strictness::Refuse).unwrap();
            assert_eq!(dataset.classes, classes);
        }
    }

    #[test]
    fn entries_may_be_lists_of_files_or_paths_of_another_machine() {
        let folder = small_set(
            "path: /somewhere/else\ntrain: train.txt\nval: ../other/images/val\nnames: [cat, dog]\n",
        );
        write(
            &folder.path().join("train.txt"),
            "./images/train/a.png\nimages/train/b.png\n\n",
        );
        let (dataset, report) = open(&folder.path().join("data.yaml"), Strictness::Refuse).unwrap();
        assert_eq!((dataset.train.len(), dataset.val.len()), (2, 1));
        assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
    }

    #[test]
    fn a_bad_description_is_refused_with_the_rule() {
        for (yaml, rule) in [
            ("train: images/train\nnames: [a, b]", "val is missing"),
            (
                "train: images/train\nval: images/val",
                "names (or nc) is missing",
            ),
            (
                "train: images/train\nval: images/val\nnc: 5\nnames: [a, b]",
                "nc is 5 and names holds 2",
            ),
            (
                "train: nowhere\nval: images/val\nnames: [a, b]",
                "there is no 'nowhere'",
            ),
            (
                "train: labels\nval: images/val\nnames: [a, b]",
                "no usable image",
            ),
            (
                "train: images/train\nval: images/val\nnames: {0: a, 2: b}",
                "without gaps",
            ),
            ("train: [\n", "not valid YAML"),
        ] {
            let folder = small_set(yaml);
            let error = open(folder.path(), Strictness::Refuse)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(rule) && error.contains("data.yaml"),
                "{yaml}: {error}"
            );
        }
    }

    #[test]
    fn a_bad_label_refuses_the_set_or_leaves_its_image_out() {
        let folder = small_set(PLAIN);
        write(
            &folder.path().join("labels/train/b.txt"),
            "0 .5 .5 .2 .2\n7 .5 .5 .2 .2\n",
        );
        let error = open(folder.path(), Strictness::Refuse)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("labels/train/b.txt:2: class 7 is not in the data set"),
            "{error}"
        );
        let (dataset, report) = open(folder.path(), Strictness::LeaveOut).unwrap();
        assert_eq!(dataset.train.len(), 1);
        assert_eq!(report.left_out.len(), 1);
    }

    #[test]
    fn an_unreadable_image_is_left_out_or_refuses_the_set() {
        let folder = small_set(PLAIN);
        write(&folder.path().join("images/train/c.jpg"), "hello");
        let error = open(folder.path(), Strictness::Refuse)
            .unwrap_err()
            .to_string();
        assert_eq!(error, "images/train/c.jpg: not an image");
        let (dataset, _) = open(folder.path(), Strictness::LeaveOut).unwrap();
        assert_eq!(dataset.train.len(), 2);
    }

    #[test]
    fn odd_data_sets_are_read_or_refused_in_words() {
        let Some(expected) = crate::data::testing::shared_file("hard/expected.json") else {
            return;
        };
        let cases: Vec<serde_json::Value> = serde_json::from_slice(&expected).unwrap();
        let mut seen = 0;
        for case in cases {
            let file = case["file"].as_str().unwrap_or_default();
            if !file.starts_with("yaml/") && !file.starts_with("yolo/") {
                continue;
            }
            let folder = crate::data::testing::unpacked(&format!("hard/{file}")).unwrap();
            match open(folder.path(), Strictness::LeaveOut) {
                Ok((dataset, report)) => {
                    let kept = dataset.train.len() + dataset.val.len() + dataset.test.len();
                    assert_eq!(report.images, kept + report.left_out.len(), "{file}");
                    assert_ne!(case["verdict"], "REJECT", "{file}");
                    if case["verdict"] == "ACCEPT" {
                        println!(
                            "{file}: {kept} kept, {:?} {:?}",
                            report.left_out, report.notes
                        );
                    }
                }
                Err(error) => println!("{file} ({}): {error}", case["verdict"]),
            }
            seen += 1;
        }
        assert!(seen > 40, "{seen} cases");
    }

    #[test]
    fn only_the_last_images_folder_becomes_labels() {
        let path = |text: &str| label_path(Path::new(text)).to_string_lossy().into_owned();
        assert_eq!(
            path("/images/set/images/train/a.b.jpg"),
            "/images/set/labels/train/a.b.txt"
        );
        assert_eq!(path("flat/a.jpg"), "flat/a.txt");
        assert_eq!(path("flat/images"), "flat/images.txt");
    }
}
