//! Path templates of REST bindings: `/v1/runs/{run_id}:stop`.

/// A path with variables, and perhaps a verb after a colon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    segments: Vec<Segment>,
    verb: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Variable(String),
}

/// Why a text is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// It lacks the slash at its start.
    #[error("a template starts with '/'")]
    NoSlash,
    /// A segment mixes literal text and braces, or is empty.
    #[error("segment '{0}' is neither a word nor one variable in braces")]
    Segment(String),
}

impl Template {
    /// Parses a template.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let path = text.strip_prefix('/').ok_or(ParseError::NoSlash)?;
        let (path, verb) = split_verb(path);
        let segments = path.split('/').map(segment).collect::<Result<_, _>>()?;
        Ok(Self {
            text: text.to_owned(),
            segments,
            verb: verb.map(str::to_owned),
        })
    }

    /// Returns the values of the variables where the path fits.
    ///
    /// A colon in the last segment begins a verb; a value that holds one writes it as `%3A`.
    pub fn matches(&self, path: &str) -> Option<Vec<(&str, String)>> {
        let (path, verb) = split_verb(path.strip_prefix('/')?);
        if verb != self.verb.as_deref() {
            return None;
        }
        let mut values = Vec::new();
        let mut given = path.split('/');
        for segment in &self.segments {
            let text = given.next()?;
            match segment {
                Segment::Literal(word) if word == text => {}
                Segment::Literal(_) => return None,
                Segment::Variable(name) => {
                    let value = percent_decoded(text)?;
                    if value.is_empty() {
                        return None;
                    }
                    values.push((name.as_str(), value));
                }
            }
        }
        given.next().is_none().then_some(values)
    }

    /// Returns the names of the variables, from left to right.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Variable(name) => Some(name.as_str()),
            Segment::Literal(_) => None,
        })
    }

    /// Returns the template as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the template with its variables' names left out: equal shapes fit the same paths.
    pub fn shape(&self) -> String {
        let mut shape = String::new();
        for segment in &self.segments {
            shape.push('/');
            match segment {
                Segment::Literal(word) => shape.push_str(word),
                Segment::Variable(_) => shape.push_str("{}"),
            }
        }
        if let Some(verb) = &self.verb {
            shape.push(':');
            shape.push_str(verb);
        }
        shape
    }
}

fn split_verb(path: &str) -> (&str, Option<&str>) {
    let last = path.rfind('/').map_or(0, |slash| slash + 1);
    match path[last..].rfind(':') {
        Some(colon) => (&path[..last + colon], Some(&path[last + colon + 1..])),
        None => (path, None),
    }
}

fn segment(text: &str) -> Result<Segment, ParseError> {
    let refuse = || ParseError::Segment(text.to_owned());
    if let Some(name) = text
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
    {
        let is_name = !name.is_empty() && name.chars().all(|c| c == '_' || c.is_alphanumeric());
        return is_name
            .then(|| Segment::Variable(name.to_owned()))
            .ok_or_else(refuse);
    }
    if text.is_empty() || text.contains(['{', '}', '*']) {
        return Err(refuse());
    }
    Ok(Segment::Literal(text.to_owned()))
}

/// Returns a path segment with its `%xx` undone, or none where they are broken or no UTF-8.
pub fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(template: &str, path: &str) -> Option<Vec<(String, String)>> {
        let template = Template::parse(template).unwrap();
        let values = template.matches(path)?;
        Some(
            values
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }

    #[test]
    fn variables_take_one_segment_each() {
        let found = values(
            "/v1/versions/{a}/images/{b}/annotations",
            "/v1/versions/x/images/y%20z/annotations",
        );
        assert_eq!(
            found.unwrap(),
            [("a".into(), "x".into()), ("b".into(), "y z".into())]
        );
        assert_eq!(values("/v1/runs/{id}", "/v1/runs"), None);
        assert_eq!(values("/v1/runs/{id}", "/v1/runs/"), None);
        assert_eq!(values("/v1/runs/{id}", "/v1/runs/a/b"), None);
        assert_eq!(values("/v1/runs/{id}", "/v1/runs/%zz"), None);
    }

    #[test]
    fn a_verb_must_be_the_same() {
        assert!(values("/v1/runs/{id}:stop", "/v1/runs/a:stop").is_some());
        assert_eq!(values("/v1/runs/{id}:stop", "/v1/runs/a"), None);
        assert_eq!(values("/v1/runs/{id}", "/v1/runs/a:stop"), None);
        let colon = values("/v1/runs/{id}", "/v1/runs/a%3Astop").unwrap();
        assert_eq!(colon[0].1, "a:stop");
    }

    #[test]
    fn what_is_no_template_is_refused() {
        assert_eq!(Template::parse("v1"), Err(ParseError::NoSlash));
        for text in ["/v1//x", "/v1/{a", "/v1/a{b}", "/v1/{}", "/v1/*"] {
            assert!(
                matches!(Template::parse(text), Err(ParseError::Segment(_))),
                "{text}"
            );
        }
    }
}
