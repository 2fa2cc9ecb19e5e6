//! Reads a data set of whole pictures: `train/<class>/…`, `val/<class>/…`, `test/<class>/…`, or only `<class>/…`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::decode::{self, Source};
use super::labels::Label;
use super::yolo::{Report, Strictness, ending, list_images};
use super::{Dataset, Sample};
use crate::random::Permutation;
use crate::{Error, Result};

/// Names of the folder for validation, the first that exists is taken.
const VAL_NAMES: [&str; 3] = ["val", "validation", "valid"];
/// Where the data set brings no validation pictures, one of so many of each class is kept for it.
const VAL_ONE_OF: usize = 5;

/// Returns whether a folder holds a folder of pictures for each class, in splits or at once, and no `data.yaml`.
pub fn holds_classes(path: &Path) -> bool {
    let Ok(folders) = subfolders(path) else {
        return false;
    };
    let has_yaml = std::fs::read_dir(path).is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| {
                ending(&entry.path()).is_some_and(|ending| ending == "yaml" || ending == "yml")
            })
        })
    });
    // The YOLO layout has these two at its root or in each split.
    let is_yolo = |folders: &[PathBuf]| {
        let has = |name: &str| folders.iter().any(|folder| folder.ends_with(name));
        has("images") || has("labels")
    };
    let train = path.join("train");
    let classes = if train.is_dir() {
        subfolders(&train).unwrap_or_default()
    } else {
        folders.clone()
    };
    !has_yaml
        && !is_yolo(&folders)
        && !is_yolo(&classes)
        && classes.iter().any(|class| {
            let mut images = Vec::new();
            list_images(class, 0, &mut images).is_ok() && !images.is_empty()
        })
}

/// Reads the data set. Classes are the folders' names in order, the same for all splits.
pub fn open(path: &Path, strictness: Strictness) -> Result<(Dataset, Report)> {
    let mut report = Report::default();
    let train = path.join("train");
    let has_splits = train.is_dir();
    let train = if has_splits { train } else { path.to_owned() };
    let split = |names: &[&str]| -> Option<PathBuf> {
        let mut folders = names.iter().map(|name| path.join(name));
        folders.find(|folder| has_splits && folder.is_dir())
    };
    let (val, test) = (split(&VAL_NAMES), split(&["test"]));
    let mut names = BTreeSet::new();
    for folder in [Some(&train), val.as_ref(), test.as_ref()]
        .into_iter()
        .flatten()
    {
        for class in subfolders(folder)? {
            names.insert(class_name(&class)?);
        }
    }
    let mut dataset = Dataset {
        classes: names.into_iter().collect(),
        is_classification: true,
        ..Dataset::default()
    };
    let mut read = |folder: Option<&PathBuf>| match folder {
        Some(folder) => read_split(path, folder, &dataset.classes, strictness, &mut report),
        None => Ok(Vec::new()),
    };
    let (train, val, test) = (
        read(Some(&train))?,
        read(val.as_ref())?,
        read(test.as_ref())?,
    );
    (dataset.train, dataset.val, dataset.test) = (train, val, test);
    if dataset.train.is_empty() {
        return Err(Error::Data {
            place: path.display().to_string(),
            rule: "the train split holds no usable image".into(),
        });
    }
    for (class, name) in dataset.classes.iter().enumerate() {
        if !dataset
            .train
            .iter()
            .any(|sample| sample.labels[0].class as usize == class)
        {
            report
                .notes
                .push(format!("class '{name}' has no picture to train on"));
        }
    }
    if dataset.val.is_empty() {
        (dataset.train, dataset.val) = divide(dataset.train);
        report.notes.push(format!(
            "there is no folder for validation: one of {VAL_ONE_OF} pictures of each class is kept for it"
        ));
    }
    Ok((dataset, report))
}

fn read_split(
    root: &Path,
    folder: &Path,
    classes: &[String],
    strictness: Strictness,
    report: &mut Report,
) -> Result<Vec<Sample>> {
    let mut images: Vec<(u32, PathBuf)> = Vec::new();
    for class_folder in subfolders(folder)? {
        let name = class_name(&class_folder)?;
        let class = classes
            .binary_search(&name)
            .expect("invariant: every folder's name was collected");
        let mut inside = Vec::new();
        list_images(&class_folder, 0, &mut inside)?;
        images.extend(inside.into_iter().map(|image| (class as u32, image)));
    }
    images.sort();
    let outcomes: Vec<Result<Sample>> = images
        .into_par_iter()
        .map(|(class, image)| {
            let inside = image.strip_prefix(root).unwrap_or(&image);
            let name = inside.to_string_lossy().replace('\\', "/");
            let source = Source::File(image);
            decode::dimensions(&name, &source)?;
            let labels = vec![Label::whole(class)];
            Ok(Sample {
                name,
                source,
                labels,
            })
        })
        .collect();
    report.images += outcomes.len();
    let mut samples = Vec::with_capacity(outcomes.len());
    for outcome in outcomes {
        match outcome {
            Ok(sample) => samples.push(sample),
            Err(Error::Data { place, rule }) if strictness == Strictness::LeaveOut => {
                report.left_out.push((place, rule));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(samples)
}

/// Keeps some pictures of each class for validation, always the same ones.
fn divide(samples: Vec<Sample>) -> (Vec<Sample>, Vec<Sample>) {
    let mut train = Vec::with_capacity(samples.len());
    let mut val = Vec::new();
    for class in samples.chunk_by(|a, b| a.labels[0].class == b.labels[0].class) {
        let order = Permutation::new(0, class[0].labels[0].class, class.len() as u32);
        for (index, sample) in class.iter().enumerate() {
            // The last of a class of one stays for training.
            let is_val = (order.at(index as u32) as usize) % VAL_ONE_OF == 1;
            if is_val { &mut val } else { &mut train }.push(sample.clone());
        }
    }
    (train, val)
}

/// Returns the folders in a folder, sorted, without hidden ones.
fn subfolders(folder: &Path) -> Result<Vec<PathBuf>> {
    let place = folder.display().to_string();
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(&place))? {
        let entry = entry.map_err(Error::io(&place))?;
        let is_hidden = entry.file_name().to_string_lossy().starts_with(['.', '_']);
        if !is_hidden && entry.path().is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
}

fn class_name(folder: &Path) -> Result<String> {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or_else(|| Error::Data {
        place: folder.display().to_string(),
        rule: "the name of a class is UTF-8".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn real_photos_sorted_in_folders_are_read_with_their_classes() {
        let Some(folder) = testing::unpacked("clothing-cls.zip") else {
            return;
        };
        assert!(holds_classes(folder.path()));
        let (dataset, report) = open(folder.path(), Strictness::Refuse).unwrap();
        let sizes = [&dataset.train, &dataset.val, &dataset.test].map(Vec::len);
        assert_eq!((dataset.classes.len(), sizes), (10, [400, 100, 100]));
        assert_eq!((report.images, &report.notes[..]), (600, &[][..]));
        assert_eq!(&dataset.classes[..2], ["dress", "hat"]);
        for sample in &dataset.val {
            let class = &dataset.classes[sample.labels[0].class as usize];
            assert!(
                sample.name.starts_with(&format!("val/{class}/")),
                "{}",
                sample.name
            );
        }
    }

    #[test]
    fn odd_folders_keep_their_classes_by_name() {
        // Name of the case, classes, pictures to train on and to validate with.
        let cases: [(&str, &[&str], (usize, usize)); 6] = [
            ("plain-control", &["cat", "dog"], (4, 4)),
            ("valid-valid-folder", &["cat", "dog"], (4, 4)),
            ("nosplit-no-split", &["cat", "dog"], (4, 2)),
            ("nested-nested-folders", &["cat", "dog"], (2, 1)),
            (
                "val-missing-class-missing-in-val",
                &["ant", "bee", "cat"],
                (6, 4),
            ),
            ("empty-class-empty-folder", &["bird", "cat", "dog"], (2, 2)),
        ];
        for (name, classes, sizes) in cases {
            let Some(folder) = testing::unpacked(&format!("hard/classify/k-{name}.zip")) else {
                return;
            };
            assert!(holds_classes(folder.path()), "{name}");
            let (dataset, report) = open(folder.path(), Strictness::LeaveOut).unwrap();
            assert_eq!(dataset.classes, classes, "{name}");
            assert_eq!((dataset.train.len(), dataset.val.len()), sizes, "{name}");
            assert_eq!(report.images, sizes.0 + sizes.1, "{name}: {report:?}");
            if name.starts_with("val-missing") {
                assert!(dataset.val.iter().all(|sample| {
                    sample
                        .name
                        .contains(classes[sample.labels[0].class as usize])
                }));
            }
        }
    }

    #[test]
    fn the_yolo_layout_is_none_of_this() {
        for archive in ["bccd-yolo.zip", "nuts-yolo-seg.zip"] {
            let Some(folder) = testing::unpacked(archive) else {
                return;
            };
            assert!(!holds_classes(folder.path()));
            std::fs::remove_file(folder.path().join("data.yaml")).unwrap();
            assert!(!holds_classes(folder.path()));
        }
    }
}
