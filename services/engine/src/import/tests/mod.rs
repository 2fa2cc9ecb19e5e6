//! Files of weights: written here byte by byte as other programs write them, read back, and broken in every way.

mod write;

use std::io::{Cursor, Write as _};

use zip::write::{SimpleFileOptions, ZipWriter};

use super::*;
use crate::checkpoint::tests::example;
use crate::models::ModelSpec;
use crate::network::State;
use crate::onnx::{self as exporter, ExportOptions};

fn zipped(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let stored =
            SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        zip.start_file(*name, stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A file with one value and storages.
fn file(value: Vec<u8>, storages: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let stream = write::stream(value);
    let names: Vec<String> = storages
        .iter()
        .map(|(key, _)| format!("best/data/{key}"))
        .collect();
    let mut entries = vec![
        ("best/data.pkl", &stream[..]),
        ("best/byteorder", b"little"),
    ];
    for (name, (_, bytes)) in names.iter().zip(storages) {
        entries.push((name, bytes));
    }
    zipped(&entries)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn torch(bytes: &[u8]) -> Result<Weights, String> {
    super::torch::read(Cursor::new(bytes))
}

fn error(bytes: &[u8]) -> String {
    torch(bytes).unwrap_err()
}

#[test]
fn a_state_dict_is_read_with_offsets_strides_and_every_kind_of_number() {
    let dict = write::ordered(&[
        (
            "shifted",
            write::tensor("FloatStorage", "0", 6, [&[2], &[2, 2], &[2, 1]]),
        ),
        (
            "turned",
            write::tensor("FloatStorage", "0", 6, [&[0], &[3, 2], &[1, 3]]),
        ),
        (
            "scalar",
            write::tensor("FloatStorage", "0", 6, [&[5], &[], &[]]),
        ),
        ("half", write::dense("HalfStorage", "1", &[2])),
        ("short", write::dense("BFloat16Storage", "2", &[1])),
        ("double", write::dense("DoubleStorage", "3", &[1])),
        ("count", write::dense("LongStorage", "4", &[1])),
        ("mask", write::dense("BoolStorage", "5", &[1])),
        ("note", write::text("not a tensor")),
    ]);
    let storages = [
        ("0", floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])),
        ("1", vec![0x00, 0x3c, 0x00, 0xc0]),
        ("2", vec![0x80, 0x3f]),
        ("3", 0.25f64.to_le_bytes().to_vec()),
        ("4", 7i64.to_le_bytes().to_vec()),
    ];
    let weights = torch(&file(dict, &storages)).unwrap();
    let values = |name: &str| weights.tensors[name].values.clone();
    assert_eq!(values("shifted"), [2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values("turned"), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(weights.tensors["turned"].shape, [3, 2]);
    assert_eq!(values("scalar"), [5.0]);
    assert_eq!(values("half"), [1.0, -2.0]);
    assert_eq!((values("short"), values("double")), (vec![1.0], vec![0.25]));
    assert_eq!(values("count"), [7.0]);
    assert_eq!(weights.tensors.len(), 7);
    assert_eq!(
        weights.notes,
        ["tensor mask: numbers in a BoolStorage are not read"]
    );
}

#[test]
fn a_pickled_module_is_walked_and_the_average_goes_first() {
    let leaf = |key: &str| {
        let weight = write::parameter(write::dense("FloatStorage", key, &[2]));
        write::module(&[("weight", weight), ("bias", b"N".to_vec())], &[], &[])
    };
    let model = |key: &str, more: &[(&str, Vec<u8>)]| {
        let sequence = write::module(&[], &[("0", leaf(key)), ("act", write::text("SiLU"))], &[]);
        write::module(&[], &[("model", sequence)], more)
    };
    let names = [
        &b"}("[..],
        &write::int(1),
        &write::text("dog"),
        &write::int(0),
        &write::text("cat"),
        b"u",
    ]
    .concat();
    let checkpoint = write::dict(&[
        ("epoch", write::int(3)),
        ("model", model("0", &[])),
        ("ema", model("1", &[("names", names)])),
    ]);
    let storages = [("0", floats(&[1.0, 2.0])), ("1", floats(&[3.0, 4.0]))];
    let weights = torch(&file(checkpoint, &storages)).unwrap();
    assert_eq!(weights.tensors.len(), 1);
    assert_eq!(weights.tensors["model.0.weight"].values, [3.0, 4.0]);
    assert_eq!(weights.classes.unwrap(), ["cat", "dog"]);

    let stripped = write::dict(&[("ema", b"N".to_vec()), ("model", model("0", &[]))]);
    let weights = torch(&file(stripped, &storages)).unwrap();
    assert_eq!(weights.tensors["model.0.weight"].values, [1.0, 2.0]);
    assert_eq!(weights.classes, None);
}

#[test]
fn hostile_and_broken_files_are_refused_with_what_is_wrong() {
    let one = |tensor: Vec<u8>| file(write::dict(&[("w", tensor)]), &[("0", floats(&[1.0, 2.0]))]);
    let place = |offset, shape: &[usize], strides: &[usize]| {
        write::tensor("FloatStorage", "0", 2, [&[offset], shape, strides])
    };
    for (bytes, words) in [
        (
            one(write::call(
                write::global("os", "system"),
                &[write::text("true")],
            )),
            "data.pkl: byte 10: it asks for os.system",
        ),
        (
            one(place(1, &[2], &[1])),
            "tensor w: it reaches past the end of its storage 0",
        ),
        (one(place(0, &[2, 2], &[1])), "more sides than strides"),
        (
            one(place(0, &[70_000, 70_000], &[0, 0])),
            "more than 268435456 elements",
        ),
        (
            one(place(0, &[1 << 30, 1 << 30, 1 << 30], &[0, 0, 0])),
            "elements",
        ),
        (
            one(write::tensor("FloatStorage", "0", 9, [&[0], &[9], &[1]])),
            "past the end of its storage 0, 8 bytes long",
        ),
        (one(write::dense("FloatStorage", "7", &[2])), "best/data/7"),
        (
            one(write::dense("FloatStorage", "../0", &[2])),
            "no plain name",
        ),
        (file(write::int(5), &[]), "neither a state dict"),
        (zipped(&[("notes.txt", b"hello")]), "a zip without data.pkl"),
        (
            zipped(&[("a/data.pkl", b"}."), ("a/byteorder", b"big")]),
            "a/byteorder: 'big' is not read",
        ),
        (
            zipped(&[("a/data.pkl", b"\x80\x02}")]),
            "a/data.pkl: byte 3: the stream ends early",
        ),
        (b"PK\x03\x04 and nothing more".to_vec(), "not a zip"),
    ] {
        let told = error(&bytes);
        assert!(told.contains(words), "'{told}' should say '{words}'");
    }
    let whole = one(place(0, &[2], &[1]));
    assert!(torch(&whole).is_ok());
    for length in [whole.len() / 3, whole.len() - 5] {
        assert!(torch(&whole[..length]).is_err());
    }
}

#[test]
fn modules_inside_themselves_end_at_a_named_depth() {
    // A module that is remembered before it is filled, and filled with itself.
    let state = write::dict(&[(
        "_modules",
        [&b"}"[..], &write::text("a"), b"h\x00s"].concat(),
    )]);
    let cycle = [
        &write::global("some", "Block")[..],
        b")\x81q\x00",
        &state,
        b"b",
    ]
    .concat();
    assert!(error(&file(cycle, &[])).contains("deeper than 64"));
}

#[test]
fn other_files_are_told_apart_by_their_first_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let told = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        read(&path).unwrap_err().to_string()
    };
    assert!(told("old.pt", b"\x80\x02\x8a\x0al").contains("old.pt: a bare pickle"));
    let mut padded = b"\x80\0\0\0\0\0\0\0{}".to_vec();
    padded.resize(8 + 0x80, b' ');
    std::fs::write(folder.path().join("empty.safetensors"), padded).unwrap();
    let empty = read(&folder.path().join("empty.safetensors")).unwrap();
    assert!(empty.tensors.is_empty());
    assert!(told("x.bin", b"hello hello hello").contains("not a file of weights"));
    assert!(told("x.onnx", &[0xff; 40]).contains("not an ONNX file"));
    assert!(
        told("x.safetensors", b"\x10\0\0\0\0\0\0\0{\"a\": 1}").contains("not a safetensors file")
    );
    assert!(
        read(&folder.path().join("none.pt"))
            .unwrap_err()
            .to_string()
            .contains("none.pt")
    );
}

/// A file of `torch.save(model.state_dict())`.
fn state_dict_of(spec: &ModelSpec, state: &State) -> Vec<u8> {
    let weights = weights_of(spec, state);
    let keys: Vec<String> = (0..weights.len()).map(|key| key.to_string()).collect();
    let entries: Vec<(&str, Vec<u8>)> = weights
        .iter()
        .zip(&keys)
        .map(|((name, tensor), key)| {
            (
                name.as_str(),
                write::dense("FloatStorage", key, &tensor.shape),
            )
        })
        .collect();
    let storages: Vec<(&str, Vec<u8>)> = weights
        .iter()
        .zip(&keys)
        .map(|((_, tensor), key)| (key.as_str(), floats(&tensor.values)))
        .collect();
    file(write::ordered(&entries), &storages)
}

fn weights_of(spec: &ModelSpec, state: &State) -> Vec<(String, Tensor)> {
    let checkpoint = Checkpoint {
        state: state.clone(),
        average: None,
        ..example()
    };
    assert_eq!(checkpoint.header.model, *spec);
    Weights::of(&checkpoint).tensors.into_iter().collect()
}

fn classes(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[test]
fn a_whole_model_comes_back_from_every_kind_of_file() {
    let source = example();
    let spec = source.header.model.clone();
    let state = source.inference_state().clone();
    let folder = tempfile::tempdir().unwrap();
    let tensors = weights_of(&spec, &state);
    let views = tensors.iter().map(|(name, tensor)| {
        let bytes = floats(&tensor.values);
        let view = safetensors::tensor::TensorView::new(
            safetensors::Dtype::F32,
            tensor.shape.clone(),
            bytes.leak(),
        );
        (name.clone(), view.unwrap())
    });
    for (name, bytes) in [
        ("model.pt", state_dict_of(&spec, &state)),
        (
            "model.safetensors",
            safetensors::serialize(views, None).unwrap(),
        ),
        ("model.fovea", source.to_bytes()),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let (read, report) = into_state(&spec, &path, &source.header.classes, 99).unwrap();
        assert_eq!(read, state, "{name}");
        assert_eq!(
            (report.loaded, report.skipped.len(), report.unused.len()),
            (report.all, 0, 0)
        );
        let told = report.to_string();
        assert!(
            told.ends_with(&format!("{0} of {0} tensors taken over", report.all)),
            "{told}"
        );
    }
}

#[test]
fn an_exported_model_comes_back_with_norms_that_only_add() {
    let source = example();
    let spec = source.header.model.clone();
    let options = ExportOptions {
        height: 64,
        width: 64,
        dynamic_batch: false,
        branches: crate::plan::Branches::default(),
        class_names: source.header.classes.clone(),
        description: String::new(),
        date: String::new(),
    };
    let bytes = exporter::export(&spec, source.inference_state(), &options).unwrap();
    let weights = onnx::read(&bytes).unwrap();
    assert_eq!(weights.classes.as_ref().unwrap(), &source.header.classes);
    let mut state = models::initialise(&spec, 99);
    let report = load(&spec, &source.header.classes, &mut state, &weights);
    assert_eq!(report.skipped, []);
    assert!(
        report
            .to_string()
            .contains("convolutions with their norms folded in"),
        "{report}"
    );
    // The same convolutions are folded out of it again.
    let again = onnx::read(&exporter::export(&spec, &state, &options).unwrap()).unwrap();
    for (name, tensor) in &weights.tensors {
        for (was, is) in tensor.values.iter().zip(&again.tensors[name].values) {
            assert!(
                (was - is).abs() <= 1e-6 * was.abs(),
                "{name}: {was} became {is}"
            );
        }
    }
}

#[test]
fn rows_of_classes_follow_their_names_in_any_case() {
    let source = example();
    let spec = ModelSpec::parse("yolo11n", 3).unwrap();
    let fresh = models::initialise(&spec, 99);
    let mut state = fresh.clone();
    let report = load(
        &spec,
        &classes(&["new", "CAT", "other"]),
        &mut state,
        &Weights::of(&source),
    );
    assert_eq!(
        report.classes,
        Some([classes(&["CAT"]), classes(&["new", "other"])])
    );
    assert_eq!(report.loaded, report.all);
    let told = report.to_string();
    assert!(
        told.contains("1 of 3 classes known by name, new: new, other"),
        "{told}"
    );

    let tables = models::tables(&spec);
    let weight = tables
        .parameters
        .iter()
        .find(|info| info.name == "model.23.cv3.1.2.weight")
        .unwrap();
    let length = weight.shape[1];
    let row = |state: &State, index: usize| {
        state.parameters[weight.range()][index * length..][..length].to_vec()
    };
    let theirs = &Weights::of(&source).tensors[&weight.name];
    assert_eq!(row(&state, 1), theirs.values[..length]);
    for kept in [0, 2] {
        assert_eq!(row(&state, kept), row(&fresh, kept));
    }
}

#[test]
fn equal_counts_without_a_common_name_are_taken_as_they_stand() {
    let source = example();
    let spec = source.header.model.clone();
    let mut state = models::initialise(&spec, 99);
    let report = load(
        &spec,
        &classes(&["a", "b"]),
        &mut state,
        &Weights::of(&source),
    );
    assert_eq!(
        (state, report.classes),
        (source.inference_state().clone(), None)
    );
}

#[test]
fn what_does_not_fit_is_told_and_keeps_its_fresh_values() {
    let source = example();
    let larger = ModelSpec::parse("yolo11s", 80).unwrap();
    let fresh = models::initialise(&larger, 5);
    let mut state = fresh.clone();
    let mut weights = Weights::of(&source);
    weights.classes = None;
    weights.tensors.insert(
        "stray".into(),
        Tensor {
            shape: vec![1],
            values: vec![1.0],
        },
    );
    let report = load(&larger, &vec![String::new(); 80], &mut state, &weights);
    let first = &report.skipped[0];
    assert_eq!(first.name, "model.0.conv.weight");
    assert_eq!(first.rule, "[16, 3, 3, 3] there, [32, 3, 3, 3] here");
    assert_eq!(report.unused, ["stray"]);
    let tables = models::tables(&larger);
    assert_eq!(
        state.parameters[tables.parameters[0].range()],
        fresh.parameters[tables.parameters[0].range()]
    );
    let told = report.to_string();
    assert!(
        told.contains("left fresh: model.0.conv.weight ([16, 3, 3, 3] there"),
        "{told}"
    );
    assert!(
        told.contains(" more") && told.contains("without a place in the model: stray"),
        "{told}"
    );
}

#[test]
fn a_file_says_which_model_it_is_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("best.fovea"), example().to_bytes()).unwrap();
    assert_eq!(model_name(&path("best.fovea")).unwrap(), "yolo11n");
    assert_eq!(model_name(&path("yolo26s-seg.pt")).unwrap(), "yolo26s-seg");
    let error = model_name(&path("best.pt")).unwrap_err().to_string();
    assert!(
        error.contains("best.pt: 'best' is no model's name"),
        "{error}"
    );
}

#[test]
fn a_file_of_another_kind_of_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.pt");
    let dict = write::dict(&[("encoder.weight", write::dense("FloatStorage", "0", &[2]))]);
    std::fs::write(&path, file(dict, &[("0", floats(&[1.0, 2.0]))])).unwrap();
    let spec = ModelSpec::parse("yolo11n", 2).unwrap();
    let refused = into_state(&spec, &path, &classes(&["a", "b"]), 0).err();
    let error = refused.unwrap().to_string();
    assert!(
        error.contains("other.pt: no tensor of a yolo11n is in it"),
        "{error}"
    );
    assert!(error.contains("encoder.weight"), "{error}");
}

#[test]
fn a_model_keeps_the_width_of_the_head_that_it_begins_with() {
    let wide = ModelSpec::parse("yolo11n", 80).unwrap();
    let mut source = example();
    source.header.classes = (0..80).map(|class| format!("thing {class}")).collect();
    source.header.model = wide.clone();
    source.state = models::initialise(&wide, 3);
    source.average = None;
    let weights = Weights::of(&source);
    let names = classes(&["thing 7", "other"]);
    let narrow = ModelSpec::parse("yolo11n", 2).unwrap();
    let spec = fitted(narrow.clone(), &weights);
    assert_eq!(spec.class_hidden, Some(80));
    let mut state = models::initialise(&spec, 9);
    let report = load(&spec, &names, &mut state, &weights);
    assert_eq!((report.loaded, report.skipped.len()), (report.all, 0));
    assert_eq!(fitted(wide.clone(), &weights), wide);
    // Without it the chains of the scores begin anew.
    let mut state = models::initialise(&narrow, 9);
    assert!(load(&narrow, &names, &mut state, &weights).skipped.len() > 40);
}
