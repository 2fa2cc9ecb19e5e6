//! `data.yaml`: where the splits are, what the classes are called, and what a row of labels holds.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde_yaml::Value;

use super::{Report, ending, read_text};
use crate::data::KeypointLayout;
use crate::models::KeypointShape;
use crate::{Error, Result};

/// Finds the YAML file that `path` names or holds.
pub(super) fn find_description(path: &Path) -> Result<PathBuf> {
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
pub(super) struct Description {
    place: String,
    /// Folders against which entries are resolved, most likely first.
    pub roots: Vec<PathBuf>,
    pub classes: Vec<String>,
    pub keypoints: Option<KeypointLayout>,
    pub train: Vec<PathBuf>,
    pub val: Vec<PathBuf>,
    pub test: Vec<PathBuf>,
}

impl Description {
    pub fn read(yaml: &Path, report: &mut Report) -> Result<Self> {
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
            keypoints: None,
            place,
            roots,
            train: Vec::new(),
            val: Vec::new(),
            test: Vec::new(),
        };
        description.classes = description.read_classes(&value)?;
        description.check_channels(&value)?;
        description.keypoints = description.read_keypoints(&value)?;
        description.train = description.entries(&value, &["train"], true, report)?;
        description.val =
            description.entries(&value, &["val", "validation", "valid"], true, report)?;
        description.test = description.entries(&value, &["test"], false, report)?;
        Ok(description)
    }

    pub fn refuse(&self, rule: String) -> Error {
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

    fn read_keypoints(&self, value: &Value) -> Result<Option<KeypointLayout>> {
        let present = |key: &str| value.get(key).filter(|value| !value.is_null());
        let Some(shape) = present("kpt_shape") else {
            return Ok(None);
        };
        let shape: Option<Vec<u64>> = shape
            .as_sequence()
            .and_then(|numbers| numbers.iter().map(Value::as_u64).collect());
        let (count, dims) = match shape.as_deref() {
            Some(&[count, dims @ 2..=3])
                if (1..=KeypointShape::COUNT_MAX as u64).contains(&count) =>
            {
                (count as usize, dims as usize)
            }
            _ => {
                return Err(self.refuse(format!(
                    "kpt_shape is [number of keypoints (1 to {}), 2 or 3]",
                    KeypointShape::COUNT_MAX
                )));
            }
        };
        let flip = match present("flip_idx") {
            None => None,
            Some(list) => Some(self.read_flip(list, count)?),
        };
        let sigmas = match present("kpt_oks_sigmas").map(Value::as_sequence) {
            None => Vec::new(),
            Some(list) => list
                .and_then(|numbers| {
                    numbers
                        .iter()
                        .map(Value::as_f64)
                        .collect::<Option<Vec<_>>>()
                })
                .filter(|sigmas| sigmas.len() == count && sigmas.iter().all(|&sigma| sigma > 0.0))
                .ok_or_else(|| {
                    self.refuse(format!("kpt_oks_sigmas holds {count} numbers above 0"))
                })?,
        };
        let names = match present("kpt_names") {
            None => Vec::new(),
            // One list for all classes, or a map from class to list, of which the first serves.
            Some(names) => names
                .as_sequence()
                .or_else(|| names.as_mapping()?.values().next()?.as_sequence())
                .and_then(|names| {
                    names
                        .iter()
                        .map(|name| name.as_str().map(str::to_owned))
                        .collect()
                })
                .filter(|names: &Vec<String>| names.len() == count)
                .ok_or_else(|| self.refuse(format!("kpt_names holds {count} names")))?,
        };
        Ok(Some(KeypointLayout {
            shape: KeypointShape { count, dims },
            flip,
            sigmas,
            names,
        }))
    }

    fn read_flip(&self, list: &Value, count: usize) -> Result<Vec<usize>> {
        let indices: Option<Vec<usize>> = list.as_sequence().and_then(|numbers| {
            let numbers = numbers.iter().map(|number| Some(number.as_u64()? as usize));
            numbers.collect()
        });
        // Mirrored twice, each point must be itself again.
        indices
            .filter(|indices| {
                indices.len() == count
                    && (0..count).all(|point| {
                        indices
                            .get(indices[point])
                            .is_some_and(|&back| back == point)
                    })
            })
            .ok_or_else(|| {
                self.refuse(format!(
                    "flip_idx holds {count} numbers of keypoints, pairs pointing at each other"
                ))
            })
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
    pub fn resolve(&self, text: &str) -> Option<(PathBuf, bool)> {
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
}
