//! Checkpoints as bytes: a safetensors file whose metadata carries the header and a checksum.
//!
//! Reading is the safetensors crate's; writing is here, because the crate's order of metadata keys changes from
//! process to process and equal checkpoints must be equal bytes.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};

use super::{Checkpoint, FORMAT_VERSION, Header};
use crate::models::{self, Tables};
use crate::network::{State, TensorInfo};

/// Metadata keys.
const HEADER: &str = "fovea";
const CHECKSUM: &str = "blake3";
/// Prefixes of tensor names.
const AVERAGE: &str = "ema.";
const MOMENT: &str = "optimizer.";
/// The accumulated gradient.
const GRADIENT: &str = "gradient";

/// A tensor to write: its shape and values.
type Entry<'a> = (Vec<usize>, &'a [f32]);

pub fn write(checkpoint: &Checkpoint) -> Vec<u8> {
    let tables = models::tables(&checkpoint.header.model);
    // Sorted by name, so that the checksum and the file have one order.
    let mut entries: BTreeMap<String, Entry<'_>> = BTreeMap::new();
    add_state(&mut entries, "", &tables, &checkpoint.state);
    if let Some(average) = &checkpoint.average {
        add_state(&mut entries, AVERAGE, &tables, average);
    }
    for (name, values) in &checkpoint.moments {
        entries.insert(format!("{MOMENT}{name}"), (vec![values.len()], values));
    }
    if !checkpoint.gradient.is_empty() {
        let gradient = &checkpoint.gradient;
        entries.insert(GRADIENT.into(), (vec![gradient.len()], gradient));
    }

    let header = serde_json::to_string(&checkpoint.header)
        .expect("invariant: a header has text keys and finite numbers");
    let mut data = Vec::with_capacity(entries.values().map(|(_, values)| values.len() * 4).sum());
    let mut index = serde_json::Map::new();
    for (name, (shape, values)) in &entries {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = serde_json::json!({
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [start, data.len()],
        });
        index.insert(name.clone(), entry);
    }
    let names = entries.keys().map(String::as_str);
    let checksum = checksum(&header, names, &data);
    let metadata = serde_json::json!({ HEADER: header, CHECKSUM: checksum });
    index.insert("__metadata__".into(), metadata);
    let mut start = serde_json::to_vec(&index).expect("invariant: JSON values are valid JSON");
    // Tensors begin at a multiple of eight bytes, as the format asks.
    start.resize(start.len().next_multiple_of(8), b' ');

    let mut bytes = Vec::with_capacity(8 + start.len() + data.len());
    bytes.extend((start.len() as u64).to_le_bytes());
    bytes.extend(start);
    bytes.extend(data);
    bytes
}

/// Returns whether the bytes begin a checkpoint and not another safetensors file.
pub fn is_checkpoint(bytes: &[u8]) -> bool {
    let metadata = SafeTensors::read_metadata(bytes);
    metadata.is_ok_and(|(_, metadata)| {
        let texts = metadata.metadata().as_ref();
        texts.is_some_and(|texts| texts.contains_key(HEADER))
    })
}

/// Reads a checkpoint, or returns the rule that the bytes break.
pub fn read(bytes: &[u8]) -> Result<Checkpoint, String> {
    check_length(bytes)?;
    let invalid = |error: safetensors::SafeTensorError| format!("not a checkpoint: {error}");
    let (start, metadata) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(invalid)?;
    let texts = metadata.metadata().as_ref();
    let text = |key: &str| texts.and_then(|texts| texts.get(key));
    let (Some(header), Some(wanted)) = (text(HEADER), text(CHECKSUM)) else {
        return Err("not a checkpoint: a safetensors file without Fovea's header".into());
    };
    // Before anything else is believed: an old engine must not call a newer file damaged.
    let version = serde_json::from_str::<serde_json::Value>(header)
        .ok()
        .and_then(|header| header.get("format")?.as_u64());
    if version != Some(u64::from(FORMAT_VERSION)) {
        let version = version.map_or("an unknown one".into(), |version| version.to_string());
        return Err(format!(
            "it is of format {version}, this engine reads {FORMAT_VERSION}"
        ));
    }
    let mut names = tensors.names();
    names.sort_unstable();
    if checksum(header, names.into_iter(), &bytes[8 + start..]) != *wanted {
        return Err("damaged: the checksum does not match".into());
    }
    let header: Header = serde_json::from_str(header)
        .map_err(|error| format!("written by an engine this one does not understand: {error}"))?;
    let tables = models::tables(&header.model);
    let state = read_state(&tensors, "", &tables)?;
    let has_average = tensors.names().iter().any(|name| name.starts_with(AVERAGE));
    let average = has_average
        .then(|| read_state(&tensors, AVERAGE, &tables))
        .transpose()?;
    let mut moments = BTreeMap::new();
    let mut gradient = Vec::new();
    for name in tensors.names() {
        let wanted = vec![state.parameters.len()];
        if let Some(moment) = name.strip_prefix(MOMENT) {
            moments.insert(moment.to_owned(), read_tensor(&tensors, name, &wanted)?);
        } else if name == GRADIENT {
            gradient = read_tensor(&tensors, name, &wanted)?;
        }
    }
    Ok(Checkpoint {
        header,
        state,
        average,
        moments,
        gradient,
    })
}

/// Tells a file that is cut off from one that is something else.
fn check_length(bytes: &[u8]) -> Result<(), String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err("truncated: it has fewer than 8 bytes".into());
    };
    let length = u64::from_le_bytes(*length);
    if rest.first() != Some(&b'{') || length > HEADER_BYTES_MAX {
        return match rest.is_empty() {
            true => Err("truncated: it ends before the header".into()),
            false => Err("not a checkpoint".into()),
        };
    }
    let Some(index) = rest.get(..length as usize) else {
        return Err("truncated: it ends inside the header".into());
    };
    let index: serde_json::Value =
        serde_json::from_slice(index).map_err(|error| format!("not a checkpoint: {error}"))?;
    let ends = index.as_object().into_iter().flatten();
    let wanted = ends
        .filter_map(|(_, entry)| entry.get("data_offsets")?.get(1)?.as_u64())
        .max()
        .unwrap_or(0);
    let present = (rest.len() - length as usize) as u64;
    if present < wanted {
        return Err(format!(
            "truncated: {present} of {wanted} bytes of tensors are there"
        ));
    }
    Ok(())
}

/// The safetensors format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

fn add_state<'a>(
    entries: &mut BTreeMap<String, Entry<'a>>,
    prefix: &str,
    tables: &Tables,
    state: &'a State,
) {
    let mut add = |tensors: &[TensorInfo], values: &'a [f32]| {
        for tensor in tensors {
            let values = &values[tensor.range()];
            entries.insert(
                format!("{prefix}{}", tensor.name),
                (tensor.shape.clone(), values),
            );
        }
    };
    add(&tables.parameters, &state.parameters);
    add(&tables.buffers, &state.buffers);
}

fn read_state(tensors: &SafeTensors<'_>, prefix: &str, tables: &Tables) -> Result<State, String> {
    let read = |infos: &[TensorInfo]| -> Result<Vec<f32>, String> {
        let mut values = Vec::with_capacity(infos.last().map_or(0, |info| info.range().end));
        for info in infos {
            values.extend(read_tensor(
                tensors,
                &format!("{prefix}{}", info.name),
                &info.shape,
            )?);
        }
        Ok(values)
    };
    Ok(State {
        parameters: read(&tables.parameters)?,
        buffers: read(&tables.buffers)?,
    })
}

fn read_tensor(tensors: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
    let tensor = tensors
        .tensor(name)
        .map_err(|_| format!("tensor {name} is missing"))?;
    if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
        return Err(format!(
            "tensor {name} is {:?} {:?} where the model has F32 {shape:?}",
            tensor.dtype(),
            tensor.shape()
        ));
    }
    let (values, _) = tensor.data().as_chunks::<4>();
    Ok(values
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect())
}

fn checksum<'a>(header: &str, names: impl Iterator<Item = &'a str>, data: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(header.len() as u64).to_le_bytes());
    hasher.update(header.as_bytes());
    for name in names {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
    }
    hasher.update(data);
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tests::example;

    fn replace_first(bytes: &mut [u8], from: &str, to: &str) {
        let place = bytes
            .windows(from.len())
            .position(|window| window == from.as_bytes())
            .unwrap();
        bytes[place..place + from.len()].copy_from_slice(to.as_bytes());
    }

    #[test]
    fn a_model_that_this_engine_does_not_know_is_named() {
        let mut bytes = example().to_bytes();
        let sum_of = |bytes: &[u8]| {
            let (start, metadata) = SafeTensors::read_metadata(bytes).unwrap();
            let texts = metadata.metadata().as_ref().unwrap().clone();
            let tensors = SafeTensors::deserialize(bytes).unwrap();
            let mut names = tensors.names();
            names.sort_unstable();
            let sum = checksum(&texts[HEADER], names.into_iter(), &bytes[8 + start..]);
            (texts[CHECKSUM].clone(), sum)
        };
        let (told, sum) = sum_of(&bytes);
        assert_eq!(told, sum);
        replace_first(&mut bytes, "yolo11", "yolo99");
        assert!(read(&bytes).unwrap_err().contains("damaged: the checksum"));
        let (told, sum) = sum_of(&bytes);
        replace_first(&mut bytes, &told, &sum);
        let error = read(&bytes).unwrap_err();
        assert!(error.contains("yolo99"), "{error}");
    }
}
