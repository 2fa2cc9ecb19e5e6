//! Runs side by side: what differs, and what each came to.

use std::collections::{BTreeMap, BTreeSet};

use super::run::Run;

/// The values of one metric by rising step.
type Values = Vec<(i64, f64)>;

/// What several runs have and don't have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Settings that differ, with a value for each run.
    pub differences: Vec<(String, Vec<String>)>,
    /// Every metric that some run has.
    pub metrics: Vec<MetricSummary>,
}

/// One metric of several runs; not a number where a run has none.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricSummary {
    /// The metric.
    pub name: String,
    /// Whether more is better.
    pub higher_is_better: bool,
    /// The best value of each run.
    pub best: Vec<f64>,
    /// The newest value of each run.
    pub last: Vec<f64>,
}

/// Tells whether more of a metric is better: of what validation scores; less of a loss.
pub fn higher_is_better(name: &str) -> bool {
    name.starts_with("metrics/")
}

/// Sets runs side by side; `series` has each run's metrics in the same order.
pub fn compare(runs: &[Run], series: &[BTreeMap<String, Values>]) -> Comparison {
    let settings: Vec<_> = runs.iter().map(settings).collect();
    let names: BTreeSet<_> = settings.iter().flat_map(BTreeMap::keys).collect();
    let differences = names
        .into_iter()
        .map(|name| {
            let of_run = |of: &BTreeMap<String, String>| of.get(name).cloned().unwrap_or_default();
            (
                name.clone(),
                settings.iter().map(of_run).collect::<Vec<_>>(),
            )
        })
        .filter(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1]))
        .collect();
    let measured = series.iter().flat_map(BTreeMap::keys);
    let reported = runs.iter().flat_map(|run| run.metrics.keys());
    let names: BTreeSet<_> = measured.chain(reported).collect();
    let metrics = names
        .into_iter()
        .map(|name| summarise(name, runs, series))
        .collect();
    Comparison {
        differences,
        metrics,
    }
}

fn summarise(name: &str, runs: &[Run], series: &[BTreeMap<String, Values>]) -> MetricSummary {
    let higher_is_better = higher_is_better(name);
    let mut summary = MetricSummary {
        name: name.to_owned(),
        higher_is_better,
        best: vec![],
        last: vec![],
    };
    for (run, series) in runs.iter().zip(series) {
        let values = series.get(name).map_or(&[][..], Vec::as_slice);
        let reported = run.metrics.get(name).copied();
        let last = reported.or(values.last().map(|(_, value)| *value));
        let all = values.iter().map(|(_, value)| *value).chain(reported);
        let best = all.filter(|value| value.is_finite()).reduce(|best, value| {
            if higher_is_better {
                best.max(value)
            } else {
                best.min(value)
            }
        });
        summary.best.push(best.unwrap_or(f64::NAN));
        summary.last.push(last.unwrap_or(f64::NAN));
    }
    summary
}

fn settings(run: &Run) -> BTreeMap<String, String> {
    let spec = &run.spec;
    let fixed = [
        ("model", spec.model.clone()),
        ("epochs", spec.epochs.to_string()),
        ("batch", spec.batch.to_string()),
        ("image_size", spec.image_size.to_string()),
        ("seed", spec.seed.to_string()),
        ("optimizer", spec.optimizer.clone()),
        ("version_id", run.version_id.to_string()),
        ("gpu_type", run.gpu_type.clone()),
    ];
    let fixed = fixed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    let arguments = spec.arguments.iter();
    let arguments = arguments.map(|(name, value)| (format!("arguments.{name}"), value.clone()));
    fixed.chain(arguments).collect()
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::queued;
    use super::*;

    #[test]
    fn only_what_differs_is_listed_and_every_metric_has_a_value_a_run() {
        let (mut one, mut two) = (queued(), queued());
        two.version_id = one.version_id;
        two.spec.batch = 32;
        two.spec.arguments.insert("lr0".into(), "0.02".into());
        one.metrics.insert("metrics/mAP50(B)".into(), 0.7);
        let series = [
            BTreeMap::from([
                (
                    "train/box_loss".to_owned(),
                    vec![(1, 2.0), (2, 0.5), (3, f64::NAN), (4, 0.9)],
                ),
                ("metrics/mAP50(B)".to_owned(), vec![(1, 0.8), (2, 0.7)]),
            ]),
            BTreeMap::new(),
        ];
        let comparison = compare(&[one, two], &series);
        let differences = [
            (
                "arguments.lr0".to_owned(),
                vec![String::new(), "0.02".into()],
            ),
            ("batch".to_owned(), vec!["16".into(), "32".into()]),
        ];
        assert_eq!(comparison.differences, differences);
        let [map, loss] = &comparison.metrics[..] else {
            panic!("{comparison:?}")
        };
        assert_eq!((map.best[0], map.last[0]), (0.8, 0.7));
        assert_eq!((loss.best[0], loss.last[0]), (0.5, 0.9));
        assert!(map.higher_is_better && !loss.higher_is_better);
        assert!(map.best[1].is_nan() && loss.last[1].is_nan());
    }
}
