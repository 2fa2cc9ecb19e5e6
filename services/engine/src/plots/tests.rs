//! Every plot, looked at as the XML it is.

use super::*;
use crate::data::Picture;
use crate::metrics::{DetectMetrics, DetectReport, Detection, Label};
use crate::models::Task;
use crate::validate::Validation;

fn classes() -> Vec<String> {
    ["cat & dog", "<script>", "plain"]
        .map(String::from)
        .to_vec()
}

fn report() -> DetectReport {
    let mut metrics = DetectMetrics::new(3);
    for image in 0..6u32 {
        let place = 10.0 * image as f32;
        let bounds = [place, place, place + 20.0, place + 30.0];
        let labels = [
            Label {
                bounds,
                class: image % 3,
            },
            Label {
                bounds: [80.0, 80.0, 95.0, 99.0],
                class: 1,
            },
        ];
        let detections = [
            Detection {
                bounds,
                score: 0.9 - 0.1 * image as f32,
                class: image % 3,
                index: 0,
            },
            Detection {
                bounds: [0.0, 60.0, 9.0, 99.0],
                score: 0.35,
                class: 2,
                index: 1,
            },
        ];
        metrics.add(&detections, &labels);
    }
    metrics.report()
}

/// Checks that tags are closed in order and attributes are whole, and returns how many elements there are.
fn elements(svg: &str) -> usize {
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    let mut open = Vec::new();
    let mut count = 0;
    for piece in svg.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else {
            count += 1;
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty());
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    count
}

#[test]
fn curves_show_each_class_and_all_of_them() {
    let report = report();
    for measure in [Measure::Precision, Measure::Recall, Measure::F1] {
        let svg = confidence_curve(measure, &report.curves, &classes());
        elements(&svg);
        for words in [
            "cat &amp; dog",
            "&lt;script&gt;",
            "all classes",
            "Confidence",
        ] {
            assert!(svg.contains(words), "{words}");
        }
    }
    let svg = precision_recall(&report, &classes());
    elements(&svg);
    assert!(svg.contains(&format!("all classes {:.3} mAP50", report.map50)));
    assert!(svg.contains(&format!("plain {:.3}", report.classes[2].ap50())));
}

#[test]
fn the_same_input_gives_the_same_text() {
    let draw = || confidence_curve(Measure::F1, &report().curves, &classes());
    assert_eq!(draw(), draw());
}

#[test]
fn a_confusion_matrix_counts_or_shares() {
    let report = report();
    let plain = confusion(&report.confusion, &classes(), false);
    let shares = confusion(&report.confusion, &classes(), true);
    assert_eq!(elements(&plain), elements(&shares));
    let missed = report.confusion.count(None, Some(1));
    assert!(missed > 0 && plain.contains(&format!(">{missed}</text>")));
    let of_one: u64 = report.confusion.rows().map(|row| row[1]).sum();
    let share = missed as f64 / of_one as f64;
    assert!(shares.contains(&format!(">{share:.2}</text>")));
    assert!(plain.contains("background"));
    // Many classes still make a picture.
    let many: Vec<String> = (0..300).map(|class| class.to_string()).collect();
    elements(&confusion(
        &crate::metrics::ConfusionMatrix::new(300),
        &many,
        true,
    ));
}

#[test]
fn labels_are_counted_and_placed() {
    let boxes = [
        (0, [0.5, 0.5, 0.2, 0.2]),
        (0, [0.5, 0.5, 0.2, 0.3]),
        (1, [1.0, 0.0, f32::NAN, 9.0]),
    ];
    let svg = labels(&boxes, &classes());
    // Two squares of centres and three of sizes, beside bars and text.
    elements(&svg);
    assert!(svg.contains("Labels of each class") && svg.contains("Sizes"));
    elements(&labels(&[], &[]));
}

#[test]
fn results_have_a_chart_for_each_column() {
    let csv =
        "epoch,time,train/box_loss,metrics/mAP50(B)\n1,2.5,1.5,0.25\n2,5,nan,0.5\n3,7,0.5,0.75\n";
    let svg = results(csv);
    elements(&svg);
    assert!(
        svg.contains("train/box_loss")
            && svg.contains("metrics/mAP50(B)")
            && !svg.contains(">time<")
    );
    elements(&results(""));
    elements(&results("epoch,a\n1,2\n"));
}

#[test]
fn a_batch_shows_pictures_with_their_boxes() {
    let picture = Picture::filled(640, 480, [200, 10, 10]);
    let boxes = vec![
        Boxed {
            class: 1,
            score: Some(0.5),
            bounds: [10.0, 10.0, 100.0, 90.0],
        },
        Boxed {
            class: 7,
            score: None,
            bounds: [-50.0, 300.0, 900.0, 470.0],
        },
    ];
    let shown = Shown {
        name: "a<b>.jpg".into(),
        picture: &picture,
        boxes,
    };
    let svg = batch(&vec![shown; 20], &classes()).unwrap();
    elements(&svg);
    assert_eq!(svg.matches("data:image/jpeg;base64,").count(), 16);
    assert!(
        svg.contains("&lt;script&gt; 0.50")
            && svg.contains("class 7")
            && svg.contains("a&lt;b&gt;.jpg")
    );
    elements(&batch(&[], &[]).unwrap());
}

#[test]
fn a_validation_and_a_run_leave_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let validation = Validation {
        report: report(),
        second: Some(report()),
        classification: None,
        losses: Default::default(),
        images: 6,
        objects: 12,
        seconds: 1.0,
        unreadable: Vec::new(),
    };
    write_validation(folder.path(), Task::Segment, &validation, &classes()).unwrap();
    write_results(folder.path(), "epoch,a\n1,2\n2,3\n").unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let wanted = [
        "BoxF1_curve.svg",
        "BoxPR_curve.svg",
        "BoxP_curve.svg",
        "BoxR_curve.svg",
        "MaskF1_curve.svg",
        "MaskPR_curve.svg",
        "MaskP_curve.svg",
        "MaskR_curve.svg",
        "confusion_matrix.svg",
        "confusion_matrix_normalized.svg",
        "results.svg",
    ];
    assert_eq!(names, wanted);
}
