//! Weights out of a PyTorch file (`.pt`, `.pth`) as `torch.save` has written it since version 1.6: a zip with the
//! pickle `<name>/data.pkl` and one entry `<name>/data/<key>` for each storage.
//!
//! Nothing of the file is run. A state dict is read as it is; a pickled module is walked by the dictionaries
//! that every module has (`_parameters`, `_buffers`, `_modules`), whatever its class.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek};
use std::rc::Rc;

use zip::ZipArchive;

use super::numbers::Format;
use super::pickle::{self, Id, Pickle, Value};
use super::{ELEMENTS_MAX, TENSORS_MAX, Tensor, Weights, element_count};

/// The most entries of the zip.
pub const ENTRIES_MAX: usize = 1 << 16;
/// The most bytes of all storages that are read.
pub const STORAGE_BYTES_MAX: u64 = 4 << 30;
/// How deep modules may lie inside each other.
pub const DEPTH_MAX: usize = 64;
/// The most modules that are looked at.
const MODULES_MAX: usize = 1 << 16;
/// How often a tensor may be wrapped (parameter, subclass).
const WRAPPINGS_MAX: usize = 4;

/// Reads a file, or says what is wrong and where.
pub fn read(file: impl Read + Seek) -> Result<Weights, String> {
    let mut archive = ZipArchive::new(file).map_err(|error| {
        format!("not a zip, as PyTorch writes them since version 1.6; save it anew with a later one ({error})")
    })?;
    if archive.len() > ENTRIES_MAX {
        return Err(format!(
            "it has {} entries, {ENTRIES_MAX} are read at most",
            archive.len()
        ));
    }
    let pickled = archive
        .file_names()
        .filter_map(Result::ok)
        .find(|name| name == "data.pkl" || name.ends_with("/data.pkl"))
        .ok_or("a zip without data.pkl: PyTorch did not write it")?
        .into_owned();
    let root = pickled
        .strip_suffix("data.pkl")
        .unwrap_or_default()
        .to_owned();
    let byteorder = format!("{root}byteorder");
    if archive.index_for_name(&byteorder).is_some() {
        let order = entry(&mut archive, &byteorder, 16)?;
        if order != b"little" {
            return Err(format!(
                "{byteorder}: '{}' is not read, little is",
                String::from_utf8_lossy(&order)
            ));
        }
    }
    let stream = entry(&mut archive, &pickled, pickle::BYTES_MAX as u64)?;
    let pickle = Pickle::read(&stream).map_err(|rule| format!("{pickled}: {rule}"))?;
    let mut reader = Reader {
        archive,
        root,
        pickle: &pickle,
        storages: HashMap::new(),
        bytes: 0,
        elements: 0,
        modules: 0,
        tensors: BTreeMap::new(),
        notes: Vec::new(),
    };
    let classes = reader.checkpoint(pickle.root)?;
    Ok(Weights {
        tensors: reader.tensors,
        classes,
        notes: reader.notes,
    })
}

fn entry<R: Read + Seek>(
    archive: &mut ZipArchive<R>,
    name: &str,
    bytes_max: u64,
) -> Result<Vec<u8>, String> {
    let invalid = |error: &dyn std::fmt::Display| format!("{name}: {error}");
    let file = archive.by_name(name).map_err(|error| invalid(&error))?;
    let mut bytes = Vec::new();
    // The size that a zip claims is not to be believed.
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| invalid(&error))?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!("{name}: it is longer than {bytes_max} bytes"));
    }
    Ok(bytes)
}

/// Returns how the elements of a storage of PyTorch's are kept.
fn format_of(class: &str) -> Option<Format> {
    Some(match class {
        "FloatStorage" => Format::F32,
        "HalfStorage" => Format::F16,
        "BFloat16Storage" => Format::Bf16,
        "DoubleStorage" => Format::F64,
        "LongStorage" => Format::I64,
        "IntStorage" => Format::I32,
        _ => return None,
    })
}

/// Where a tensor's elements lie in a storage.
struct Strided {
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

struct Reader<'a, R> {
    archive: ZipArchive<R>,
    root: String,
    pickle: &'a Pickle,
    storages: HashMap<String, Rc<Vec<u8>>>,
    bytes: u64,
    elements: usize,
    modules: usize,
    tensors: BTreeMap<String, Tensor>,
    notes: Vec<String>,
}

impl<'a, R: Read + Seek> Reader<'a, R> {
    /// Reads whatever stands at the top of the file: a checkpoint, a state dict or a module. Returns class names
    /// where there are any.
    fn checkpoint(&mut self, top: Id) -> Result<Option<Vec<String>>, String> {
        let pickle = self.pickle;
        let is_none = |id: &Id| matches!(pickle.value(*id), Value::None);
        // The average is what a checkpoint is validated and used with.
        let inner = ["ema", "model", "state_dict"]
            .into_iter()
            .filter_map(|key| pickle.get(top, key))
            .find(|id| !is_none(id) && (pickle.entries(*id).is_some() || self.is_module(*id)));
        let model = inner.unwrap_or(top);
        if self.is_module(model) {
            self.module(model, "", 0)?;
        } else {
            self.state_dict(model)?;
        }
        let named = |id| {
            pickle
                .attribute(id, "names")
                .or_else(|| pickle.get(id, "names"))
        };
        Ok(named(model)
            .or_else(|| named(top))
            .and_then(|id| self.names(id)))
    }

    fn is_module(&self, id: Id) -> bool {
        self.pickle.attribute(id, "_modules").is_some()
    }

    fn state_dict(&mut self, id: Id) -> Result<(), String> {
        let Some(entries) = self.pickle.entries(id) else {
            return Err(
                "data.pkl: neither a state dict, nor a checkpoint with a model, nor a module"
                    .into(),
            );
        };
        for &(name, value) in entries {
            if let Some(name) = self.pickle.text(name) {
                self.add(name.to_owned(), value)?;
            }
        }
        Ok(())
    }

    fn module(&mut self, id: Id, prefix: &str, depth: usize) -> Result<(), String> {
        self.modules += 1;
        if depth > DEPTH_MAX || self.modules > MODULES_MAX {
            return Err(format!(
                "module '{prefix}': modules lie deeper than {DEPTH_MAX} or are more than {MODULES_MAX}"
            ));
        }
        let pickle = self.pickle;
        for kind in ["_parameters", "_buffers"] {
            let held = pickle.attribute(id, kind).and_then(|id| pickle.entries(id));
            for &(name, value) in held.unwrap_or_default() {
                if let Some(name) = pickle.text(name) {
                    self.add(format!("{prefix}{name}"), value)?;
                }
            }
        }
        let inner = pickle
            .attribute(id, "_modules")
            .and_then(|id| pickle.entries(id));
        for &(name, value) in inner.unwrap_or_default() {
            if let Some(name) = pickle.text(name)
                && self.is_module(value)
            {
                self.module(value, &format!("{prefix}{name}."), depth + 1)?;
            }
        }
        Ok(())
    }

    /// Returns class names from `{0: 'cat', …}` or `['cat', …]`.
    fn names(&self, id: Id) -> Option<Vec<String>> {
        let pickle = self.pickle;
        let text = |id| pickle.text(id).map(str::to_owned);
        if let Some(members) = pickle.members(id) {
            return members.iter().map(|&id| text(id)).collect();
        }
        let entries = pickle.entries(id)?;
        let numbered = entries
            .iter()
            .map(|&(number, name)| Some((pickle.int(number)?, text(name)?)));
        let numbered: BTreeMap<i64, String> = numbered.collect::<Option<_>>()?;
        let is_whole = numbered.keys().copied().eq(0..numbered.len() as i64);
        is_whole.then(|| numbered.into_values().collect())
    }

    /// Takes a tensor over; anything else in its place is passed by.
    fn add(&mut self, name: String, value: Id) -> Result<(), String> {
        let placed = |rule: String| format!("tensor {name}: {rule}");
        let Some((storage, place)) = self.strided(value).map_err(placed)? else {
            return Ok(());
        };
        let (kind, key, count) = self.storage_of(storage).map_err(placed)?;
        let Some(format) = format_of(kind) else {
            self.notes
                .push(placed(format!("numbers in a {kind} are not read")));
            return Ok(());
        };
        let tensor = self.elements(format, key, count, &place).map_err(placed)?;
        self.tensors.insert(name, tensor);
        if self.tensors.len() > TENSORS_MAX {
            return Err(format!("it holds more than {TENSORS_MAX} tensors"));
        }
        Ok(())
    }

    /// Returns storage and place of a tensor; nothing for another value.
    fn strided(&self, value: Id) -> Result<Option<(Id, Strided)>, String> {
        let pickle = self.pickle;
        let Some((function, mut arguments)) = self.call(value) else {
            return Ok(None);
        };
        let (mut module, mut name) = function;
        for _ in 0..WRAPPINGS_MAX {
            let inner = match (module, name, arguments) {
                ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor_v3", _) => break,
                (
                    "torch._utils",
                    "_rebuild_parameter" | "_rebuild_parameter_with_state",
                    [data, ..],
                )
                | ("torch.nn.parameter", "Parameter", [data, ..]) => self.call(*data),
                ("torch._tensor", "_rebuild_from_type_v2", [function, _, inner, ..]) => {
                    pickle.global(*function).zip(pickle.members(*inner))
                }
                _ => return Ok(None),
            };
            let Some(inner) = inner else {
                return Ok(None);
            };
            ((module, name), arguments) = inner;
        }
        let [storage, offset, shape, strides, ..] = *arguments else {
            return Err(format!(
                "{module}.{name} has {} arguments only",
                arguments.len()
            ));
        };
        let Value::Persistent(storage) = *pickle.value(storage) else {
            return Err("its storage is none".into());
        };
        let place = Strided {
            offset: self.length(offset)?,
            shape: self.lengths(shape)?,
            strides: self.lengths(strides)?,
        };
        Ok(Some((storage, place)))
    }

    /// Returns what an object would have been made with: a function by name, and its arguments.
    fn call(&self, id: Id) -> Option<((&'a str, &'a str), &'a [Id])> {
        let pickle = self.pickle;
        match pickle.value(id) {
            Value::Object {
                class, arguments, ..
            } => pickle.global(*class).zip(pickle.members(*arguments)),
            _ => None,
        }
    }

    fn length(&self, id: Id) -> Result<usize, String> {
        let number = self.pickle.int(id);
        number
            .and_then(|number| usize::try_from(number).ok())
            .ok_or_else(|| "a length or stride is no whole number from 0 on".into())
    }

    fn lengths(&self, id: Id) -> Result<Vec<usize>, String> {
        // `torch.Size` is a call with the tuple as its argument.
        let members = match self.call(id) {
            Some((("torch", "Size"), [inner])) => self.pickle.members(*inner),
            _ => self.pickle.members(id),
        };
        let members = members.ok_or("its shape is no tuple")?;
        members.iter().map(|&id| self.length(id)).collect()
    }

    fn elements(
        &mut self,
        format: Format,
        key: &str,
        count: usize,
        place: &Strided,
    ) -> Result<Tensor, String> {
        if place.shape.len() != place.strides.len() {
            return Err("it has more sides than strides".into());
        }
        let elements = element_count(&place.shape)
            .filter(|&elements| self.elements.saturating_add(elements) <= ELEMENTS_MAX)
            .ok_or_else(|| format!("the file holds more than {ELEMENTS_MAX} elements"))?;
        self.elements += elements;
        let furthest = place
            .shape
            .iter()
            .zip(&place.strides)
            .try_fold(place.offset, |sum, (&side, &stride)| {
                sum.checked_add(side.saturating_sub(1).checked_mul(stride)?)
            });
        let is_inside = elements == 0 || furthest.is_some_and(|furthest| furthest < count);
        let bytes = self.storage(key)?;
        if !is_inside
            || count
                .checked_mul(format.bytes())
                .is_none_or(|length| length > bytes.len())
        {
            return Err(format!(
                "it reaches past the end of its storage {key}, {} bytes long",
                bytes.len()
            ));
        }
        Ok(Tensor {
            values: format.read(&gather(&bytes, format.bytes(), place, elements)),
            shape: place.shape.clone(),
        })
    }

    /// Returns class, key and length of the storage that a persistent id names.
    fn storage_of(&self, id: Id) -> Result<(&'a str, &'a str, usize), String> {
        let pickle = self.pickle;
        let parts = || -> Option<(&'a str, &'a str, Id)> {
            let &[kind, class, key, _, count] = pickle.members(id)? else {
                return None;
            };
            let is_storage = pickle.text(kind)? == "storage";
            is_storage.then_some((pickle.global(class)?.1, pickle.text(key)?, count))
        };
        let (class, key, count) =
            parts().ok_or("its storage is named in a way PyTorch does not")?;
        if key.contains(['/', '\\']) {
            return Err(format!("its storage '{key}' is no plain name"));
        }
        Ok((class, key, self.length(count)?))
    }

    fn storage(&mut self, key: &str) -> Result<Rc<Vec<u8>>, String> {
        if let Some(known) = self.storages.get(key) {
            return Ok(Rc::clone(known));
        }
        let name = format!("{}data/{key}", self.root);
        let bytes = entry(&mut self.archive, &name, STORAGE_BYTES_MAX - self.bytes)?;
        self.bytes += bytes.len() as u64;
        let bytes = Rc::new(bytes);
        self.storages.insert(key.to_owned(), Rc::clone(&bytes));
        Ok(bytes)
    }
}

/// Returns the bytes of a strided tensor's elements in C order. The place lies inside the storage.
fn gather<'a>(stored: &'a [u8], size: usize, place: &Strided, elements: usize) -> Cow<'a, [u8]> {
    let mut dense = 1;
    let is_dense = place
        .shape
        .iter()
        .zip(&place.strides)
        .rev()
        .all(|(&side, &stride)| {
            let follows = side <= 1 || stride == dense;
            dense *= side;
            follows
        });
    if is_dense {
        return Cow::Borrowed(&stored[place.offset * size..][..elements * size]);
    }
    let mut values = Vec::with_capacity(elements * size);
    let mut index = vec![0; place.shape.len()];
    let mut at = place.offset;
    for _ in 0..elements {
        values.extend_from_slice(&stored[at * size..][..size]);
        // Counts up like the digits of a number, the last side first.
        for side in (0..index.len()).rev() {
            index[side] += 1;
            at += place.strides[side];
            if index[side] < place.shape[side] {
                break;
            }
            at -= place.strides[side] * place.shape[side];
            index[side] = 0;
        }
    }
    Cow::Owned(values)
}
