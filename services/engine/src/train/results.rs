//! `results.csv`: one row for each epoch, under the reference's names.

use super::report::EpochReport;

/// Learning rates of an empty table: as many as optimisers other than MuSGD have.
const RATES: usize = 3;

/// Returns the content of `results.csv`. The last two columns, speed and the share of time spent waiting for data, are
/// ours.
pub fn results(history: &[EpochReport]) -> String {
    let columns = history
        .first()
        .map(|report| report.columns)
        .unwrap_or_default();
    let losses = columns.loss_names();
    let rates = history
        .first()
        .map_or(RATES, |report| report.learning_rates.len());
    let mut names: Vec<String> = vec!["epoch".into(), "time".into()];
    names.extend(losses.iter().map(|name| format!("train/{name}")));
    names.extend(
        columns
            .metric_names()
            .iter()
            .map(|name| format!("metrics/{name}")),
    );
    names.extend(losses.iter().map(|name| format!("val/{name}")));
    names.extend((0..rates).map(|group| format!("lr/pg{group}")));
    names.extend(["images_per_second".into(), "data_wait_share".into()]);
    let mut text = names.join(",") + "\n";
    for report in history {
        let scores = report.validation.unwrap_or_default();
        let padded = |row: &[f64], len: usize| -> Vec<f64> {
            let rest = std::iter::repeat(0.0);
            row.iter().copied().chain(rest).take(len).collect()
        };
        let mut values = vec![report.seconds];
        values.extend(padded(&report.losses, losses.len()));
        values.extend(scores.metrics(columns.task));
        values.extend(padded(&scores.losses, losses.len()));
        values.extend(padded(&report.learning_rates, rates));
        values.extend([report.images_per_second, report.data_wait_share]);
        let values: Vec<String> = values.into_iter().map(six_digits).collect();
        text.push_str(&format!("{},{}\n", report.epoch, values.join(",")));
    }
    text
}

/// Writes a number with six significant digits, as C's `%.6g` does.
fn six_digits(value: f64) -> String {
    const DIGITS: i32 = 6;
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let trim = |text: &str| -> String {
        match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text.to_owned(),
        }
    };
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        let decimals = (DIGITS - 1 - exponent) as usize;
        trim(&format!("{value:.decimals$}"))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Task;
    use crate::train::Columns;

    #[test]
    fn numbers_look_as_c_prints_them() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.001429, "0.001429"),
            (0.000123456789, "0.000123457"),
            (0.0000123456789, "1.23457e-05"),
            (123456.7, "123457"),
            (1234567.0, "1.23457e+06"),
            (999999.96, "1e+06"),
            (-2.5, "-2.5"),
            (100.0, "100"),
        ] {
            assert_eq!(six_digits(value), text);
        }
    }

    #[test]
    fn every_task_has_its_columns() {
        for (task, columns) in [
            (
                Task::Segment,
                "train/seg_loss,metrics/mAP50-95(B),metrics/mAP50-95(M),val/sem_loss",
            ),
            (
                Task::Pose,
                "train/kobj_loss,metrics/precision(P),metrics/mAP50(P),val/pose_loss",
            ),
            (
                Task::Obb,
                "train/angle_loss,metrics/recall(B),val/angle_loss",
            ),
            (
                Task::Classify,
                "train/loss,metrics/accuracy_top1,metrics/accuracy_top5,val/loss",
            ),
        ] {
            let history = [EpochReport {
                epoch: 1,
                columns: Columns {
                    task,
                    ..Columns::default()
                },
                learning_rates: [0.1; 8].into_iter().collect(),
                ..EpochReport::default()
            }];
            let text = results(&history);
            let lines: Vec<Vec<&str>> =
                text.lines().map(|line| line.split(',').collect()).collect();
            for column in columns.split(',') {
                assert!(
                    lines[0].contains(&column),
                    "{task:?}: no {column} in {:?}",
                    lines[0]
                );
            }
            assert!(lines[0].contains(&"lr/pg7"));
            assert_eq!(lines[0].len(), lines[1].len(), "{task:?}");
        }
    }

    #[test]
    fn results_have_one_row_for_each_epoch() {
        let history = [EpochReport {
            epoch: 1,
            seconds: 12.5,
            losses: [1.0, 2.0, 3.0].into_iter().collect(),
            learning_rates: [0.1, 0.2, 0.3].into_iter().collect(),
            images_per_second: 7.0,
            data_wait_share: 0.01,
            ..EpochReport::default()
        }];
        let text = results(&history);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),metrics/recall(B),\
             metrics/mAP50(B),metrics/mAP50-95(B),val/box_loss,val/cls_loss,val/dfl_loss,lr/pg0,lr/pg1,lr/pg2,\
             images_per_second,data_wait_share"
        );
        assert_eq!(lines[1], "1,12.5,1,2,3,0,0,0,0,0,0,0,0.1,0.2,0.3,7,0.01");
    }
}
