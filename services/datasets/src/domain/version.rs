//! What a version is, and the digest that says whether two are equal.

use serde::{Deserialize, Serialize};

use super::labels::Label;
use super::yolo::Split;

/// How many images, objects and background images a split has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub images: u32,
    pub annotations: u32,
    pub backgrounds: u32,
}

/// One picture of a version to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Content {
    pub name: String,
    pub split: Split,
    pub width: u32,
    pub height: u32,
    pub size_bytes: u64,
    /// BLAKE3 of the bytes.
    pub digest: [u8; 32],
    pub labels: Vec<Label>,
}

/// Counts each split.
pub fn summarise(contents: &[Content]) -> Vec<(Split, Summary)> {
    Split::ALL
        .into_iter()
        .filter_map(|split| {
            let mut summary = Summary {
                images: 0,
                annotations: 0,
                backgrounds: 0,
            };
            for content in contents.iter().filter(|content| content.split == split) {
                summary.images += 1;
                summary.annotations += u32::try_from(content.labels.len()).unwrap_or(u32::MAX);
                summary.backgrounds += u32::from(content.labels.is_empty());
            }
            (summary.images > 0).then_some((split, summary))
        })
        .collect()
}

/// Returns the digest of classes, pictures and labels: BLAKE3 over their lengths and bytes in a fixed order.
pub fn digest(class_names: &[String], contents: &[Content]) -> String {
    let mut hasher = Hasher::default();
    hasher.number(class_names.len() as u64);
    for name in class_names {
        hasher.text(name);
    }
    hasher.number(contents.len() as u64);
    for content in contents {
        hasher.text(&content.name);
        hasher.text(content.split.as_str());
        hasher.0.update(&content.digest);
        hasher.number(content.labels.len() as u64);
        for label in &content.labels {
            hasher.number(label.class_id.into());
            for value in [label.center_x, label.center_y, label.width, label.height] {
                hasher.number(value.to_bits());
            }
        }
    }
    hasher.0.finalize().to_hex().to_string()
}

#[derive(Default)]
struct Hasher(blake3::Hasher);

impl Hasher {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(name: &str, split: Split, labels: usize) -> Content {
        let label = Label {
            class_id: 0,
            center_x: 0.5,
            center_y: 0.5,
            width: 0.1,
            height: 0.1,
        };
        Content {
            name: name.to_owned(),
            split,
            width: 10,
            height: 10,
            size_bytes: 1,
            digest: [1; 32],
            labels: vec![label; labels],
        }
    }

    #[test]
    fn splits_are_counted() {
        let contents = [
            content("a", Split::Train, 2),
            content("b", Split::Train, 0),
            content("c", Split::Test, 1),
        ];
        let train = Summary {
            images: 2,
            annotations: 2,
            backgrounds: 1,
        };
        let test = Summary {
            images: 1,
            annotations: 1,
            backgrounds: 0,
        };
        assert_eq!(
            summarise(&contents),
            [(Split::Train, train), (Split::Test, test)]
        );
    }

    #[test]
    fn the_digest_changes_with_anything_that_a_training_sees() {
        let names = ["cat".to_owned()];
        let base = digest(&names, &[content("a", Split::Train, 1)]);
        assert_eq!(base, digest(&names, &[content("a", Split::Train, 1)]));
        let others = [
            digest(&["dog".to_owned()], &[content("a", Split::Train, 1)]),
            digest(&names, &[content("b", Split::Train, 1)]),
            digest(&names, &[content("a", Split::Val, 1)]),
            digest(&names, &[content("a", Split::Train, 2)]),
            digest(
                &names,
                &[Content {
                    digest: [2; 32],
                    ..content("a", Split::Train, 1)
                }],
            ),
        ];
        assert!(others.iter().all(|other| *other != base));
    }
}
