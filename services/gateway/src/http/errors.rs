//! `GET /errors/<reason>`: what happened, why, and how to mend it, from the services' own
//! `errors.md`.

use axum::extract::{Path, State};
use axum::response::{Html, IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use super::body;
use super::problem::Problem;
use crate::error::Error;
use crate::gateway::Shared;

/// The `errors.md` of every service that has one, by its name.
const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/errors.rs"));
const MARKDOWN: HeaderValue = HeaderValue::from_static("text/markdown; charset=utf-8");
const FRAME: &str = include_str!("../ui/error.html");

/// Answers with the section of a reason: as a page for browsers, as Markdown for others.
pub async fn describe(
    State(_gateway): State<Shared>,
    Path(reason): Path<String>,
    headers: HeaderMap,
) -> Response {
    let name = reason.to_ascii_uppercase().replace('-', "_");
    // Codes without a reason of ours share one section.
    let heading = if name.starts_with("GRPC_") {
        "GRPC"
    } else {
        name.as_str()
    };
    let sections: Vec<_> = PAGES
        .iter()
        .filter_map(|(service, page)| Some((*service, section(page, heading)?)))
        .collect();
    if sections.is_empty() {
        let path = format!("/errors/{reason}");
        return Problem::from(Error::RouteUnknown { path }).into_response();
    }
    let accept = body::text(&headers, ACCEPT).unwrap_or_default();
    if accept.contains("text/html") {
        let content: String = sections.iter().map(|(s, text)| html(s, text)).collect();
        let page = FRAME
            .replace("{reason}", &escaped(&name))
            .replace("{content}", &content);
        return Html(page).into_response();
    }
    let texts = sections
        .iter()
        .map(|(service, text)| format!("# {name} ({service})\n\n{text}\n"));
    (
        [(CONTENT_TYPE, MARKDOWN)],
        texts.collect::<Vec<_>>().join("\n"),
    )
        .into_response()
}

/// Returns what stands under the heading of a reason, up to the next heading of a reason.
fn section(page: &str, reason: &str) -> Option<String> {
    let mut lines = page.lines();
    lines.by_ref().find(|line| heading(line) == Some(reason))?;
    let lines: Vec<_> = lines.take_while(|line| heading(line).is_none()).collect();
    Some(lines.join("\n").trim().to_owned())
}

/// Returns the reason that a line is the heading of.
fn heading(line: &str) -> Option<&str> {
    let name = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let name = name.trim_matches('`');
    let is_reason = !name.is_empty()
        && name
            .bytes()
            .all(|b| b == b'_' || b.is_ascii_uppercase() || b.is_ascii_digit());
    is_reason.then_some(name)
}

/// Renders the little Markdown that these pages use: paragraphs, lists, code.
fn html(service: &str, text: &str) -> String {
    let mut page = format!("<p class=\"dim\">{}</p>", escaped(service));
    for block in text
        .split("\n\n")
        .map(str::trim)
        .filter(|block| !block.is_empty())
    {
        let is_list = block
            .lines()
            .all(|line| line.starts_with("- ") || line.starts_with("  "));
        if is_list {
            let items = block
                .split("\n- ")
                .map(|item| item.trim_start_matches("- "));
            let items: String = items
                .map(|item| format!("<li>{}</li>", inline(item)))
                .collect();
            page.push_str(&format!("<ul>{items}</ul>"));
        } else {
            page.push_str(&format!("<p>{}</p>", inline(block)));
        }
    }
    page
}

fn inline(text: &str) -> String {
    let mut html = String::new();
    for (place, piece) in text.split('`').enumerate() {
        let piece = escaped(piece);
        match place % 2 {
            0 => html.push_str(&piece),
            _ => html.push_str(&format!("<code>{piece}</code>")),
        }
    }
    html
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "# What x refuses\n\nIntro.\n\n## ONE\n\nIt `broke`.\n\n- mend <it>\n\n## `TWO`\n\nB.\n";

    #[test]
    fn a_section_ends_where_the_next_reason_begins() {
        assert_eq!(section(PAGE, "ONE").unwrap(), "It `broke`.\n\n- mend <it>");
        assert_eq!(section(PAGE, "TWO").unwrap(), "B.");
        assert_eq!(section(PAGE, "WHAT"), None);
    }

    #[test]
    fn a_section_becomes_a_page_without_foreign_markup() {
        let html = html("x", &section(PAGE, "ONE").unwrap());
        assert!(html.contains("<p>It <code>broke</code>.</p>"), "{html}");
        assert!(html.contains("<ul><li>mend &lt;it&gt;</li></ul>"), "{html}");
    }

    #[test]
    fn every_reason_of_the_gateway_has_a_section() {
        let source = include_str!("../error.rs");
        let own = PAGES.iter().find(|(service, _)| *service == crate::NAME);
        let (_, page) = own.unwrap();
        let reasons: Vec<_> = source
            .split('"')
            .filter(|text| text.len() > 5 && heading(&format!("#{text}")).is_some())
            .filter(|text| *text != "OTHER")
            .collect();
        assert!(reasons.len() > 15, "{reasons:?}");
        for reason in reasons {
            assert!(section(page, reason).is_some(), "{reason} has no section");
        }
    }
}
