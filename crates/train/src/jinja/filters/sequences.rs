//! Filters on lists, dictionaries and other iterables.

use std::cmp::Ordering;

use super::super::calls::Given;
use super::super::fault::{Answer, Fault};
use super::super::interpreter::Run;
use super::super::meter::Pen;
use super::super::syntax::Operator;
use super::super::value::dict::check_key;
use super::super::value::numbers;
use super::super::value::{Missing, Stream, Text, Value};

fn is_set(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

fn empty(why: &'static str) -> Value {
    Value::Undefined(Missing::Because(why))
}

impl Run<'_> {
    pub(super) fn sequence_filter(&mut self, name: &str, value: Value, given: Given) -> Answer<Value> {
        match name {
            "items" => {
                given.none(name)?;
                match value.inside() {
                    Value::Undefined(_) => Stream::made("do_items", Vec::new(), &self.meter),
                    Value::Dict(dict) => Stream::made(
                        "do_items",
                        self.view(super::super::value::View::Items, dict)?,
                        &self.meter,
                    ),
                    _ => Err(Fault::new(format!("`items` needs a dictionary, not {}", value.kind()))),
                }
            }
            "list" => {
                given.none(name)?;
                let items = self.items(&value)?;
                self.list(items)
            }
            "first" => {
                given.none(name)?;
                if let Value::Stream(stream) = &value {
                    let first = stream.items.borrow_mut().pop_front();
                    return Ok(first.unwrap_or_else(|| empty("there is no first item")));
                }
                let first = self.items(&value)?.into_iter().next();
                Ok(first.unwrap_or_else(|| empty("there is no first item")))
            }
            "last" => {
                given.none(name)?;
                if matches!(value, Value::Stream(_)) {
                    return Err(Fault::new("a generator has no last item"));
                }
                let last = self.items(&value)?.pop();
                // Python takes the last item of a text by its place, and the first by going through the text.
                match last {
                    Some(Value::Text(last)) if value.is_safe() => Ok(Value::Markup(last)),
                    last => Ok(last.unwrap_or_else(|| empty("there is no last item"))),
                }
            }
            "reverse" => {
                given.none(name)?;
                let mut items = self.items(&value)?;
                items.reverse();
                match value.as_text() {
                    Some(text) => Ok(value.alike(Text::made(text.chars().rev().collect(), &self.meter)?)),
                    None => Stream::made("reversed", items, &self.meter),
                }
            }
            "join" => self.join(&value, given),
            "dictsort" => self.dictsort(&value, given),
            "sort" => {
                let [reverse, case, attribute] =
                    given.bind(name, ["reverse", "case_sensitive", "attribute"])?;
                let paths = Paths::several(attribute.as_ref())?;
                let items = self.items(&value)?;
                let items = self.sorted(items, &paths, is_set(case), is_set(reverse))?;
                self.list(items)
            }
            "unique" => self.unique(&value, given),
            "min" | "max" => self.extreme(name, &value, given),
            "sum" => self.sum(&value, given),
            "groupby" => self.groupby(&value, given),
            "batch" | "slice" => self.portions(name, &value, given),
            "map" => self.map(&value, given),
            _ => self.select(name, &value, given),
        }
    }

    fn join(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let [separator, attribute] = given.bind("join", ["d", "attribute"])?;
        let separator = match separator {
            Some(separator) => self.str(&separator)?,
            None => Text::from(""),
        };
        let paths = Paths::one(attribute.as_ref())?;
        let mut pen = Pen::new(&self.meter);
        for (at, item) in self.items(value)?.iter().enumerate() {
            if at > 0 {
                pen.push(&separator)?;
            }
            let item = self.along(item, &paths.0, None)?;
            self.write(&item, &mut pen)?;
        }
        Ok(Value::Text(pen.into()))
    }

    fn dictsort(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let [case, by, reverse] = given.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
        let at = match by.as_ref().and_then(Value::as_text) {
            None | Some("key") => 0_usize,
            Some("value") => 1,
            Some(_) => return Err(Fault::new("`dictsort` sorts by key or by value")),
        };
        let Value::Dict(dict) = value.inside() else {
            return Err(Fault::new(format!("`dictsort` needs a dictionary, not {}", value.kind())));
        };
        let pairs = self.view(super::super::value::View::Items, dict)?;
        let paths = Paths(vec![vec![Value::Int(at as i128)]]);
        let pairs = self.sorted(pairs, &paths, is_set(case), is_set(reverse))?;
        check_order(&pairs, at)?;
        self.list(pairs)
    }

    /// Items in the order of the values at the end of the paths.
    fn sorted(&mut self, items: Vec<Value>, paths: &Paths, case: bool, reverse: bool) -> Answer<Vec<Value>> {
        let mut keyed = Vec::with_capacity(items.len());
        for item in items {
            let mut keys = Vec::with_capacity(paths.0.len());
            for path in &paths.0 {
                let key = self.along(&item, std::slice::from_ref(path), None)?;
                keys.push(if case { key } else { self.lowered(key)? });
            }
            keyed.push((keys, item));
        }
        let steps = keyed.len().max(2).ilog2() as u64 * keyed.len() as u64;
        self.meter.work(steps)?;
        let mut fault = None;
        keyed.sort_by(|(a, _), (b, _)| {
            let (a, b) = if reverse { (b, a) } else { (a, b) };
            let unequal = a.iter().zip(b).find(|(a, b)| !a.equals(b));
            match unequal.map(|(a, b)| a.order(b)) {
                None => Ordering::Equal,
                Some(Ok(order)) => order.unwrap_or(Ordering::Equal),
                Some(Err(unordered)) => {
                    fault.get_or_insert(unordered);
                    Ordering::Equal
                }
            }
        });
        fault.map_or(Ok(()), Err)?;
        Ok(keyed.into_iter().map(|(_, item)| item).collect())
    }

    fn lowered(&mut self, value: Value) -> Answer<Value> {
        match value.as_text() {
            Some(text) => self.text(text.to_lowercase()),
            None => Ok(value),
        }
    }

    /// The values along paths of keys; the first path alone, where there is one.
    fn along(&mut self, item: &Value, paths: &[Vec<Value>], default: Option<&Value>) -> Answer<Value> {
        let mut found = item.clone();
        for key in paths.first().into_iter().flatten() {
            self.meter.work(1)?;
            found = self.item(&found, key)?;
            if let (true, Some(default)) = (found.is_undefined(), default) {
                found = default.clone();
            }
        }
        Ok(found)
    }

    fn unique(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let [case, attribute] = given.bind("unique", ["case_sensitive", "attribute"])?;
        let (case, paths) = (is_set(case), Paths::one(attribute.as_ref())?);
        let mut seen = super::super::value::dict::Dict::default();
        let mut kept = Vec::new();
        for item in self.items(value)? {
            let key = self.along(&item, &paths.0, None)?;
            let key = if case { key } else { self.lowered(key)? };
            check_key(&key)?;
            self.meter.work(1)?;
            if seen.get(&key).is_none() {
                seen.set(key, Value::None);
                kept.push(item);
            }
        }
        Stream::made("do_unique", kept, &self.meter)
    }

    fn extreme(&mut self, name: &str, value: &Value, given: Given) -> Answer<Value> {
        let [case, attribute] = given.bind(name, ["case_sensitive", "attribute"])?;
        let (case, paths) = (is_set(case), Paths::one(attribute.as_ref())?);
        let mut best: Option<(Value, Value)> = None;
        for item in self.items(value)? {
            let key = self.along(&item, &paths.0, None)?;
            let key = if case { key } else { self.lowered(key)? };
            let better = match &best {
                None => true,
                Some((least, _)) if name == "min" => key.order(least)? == Some(Ordering::Less),
                Some((most, _)) => key.order(most)? == Some(Ordering::Greater),
            };
            if better {
                best = Some((key, item));
            }
        }
        Ok(best.map_or_else(|| empty("there is no item to choose"), |(_, item)| item))
    }

    fn sum(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let [attribute, start] = given.bind("sum", ["attribute", "start"])?;
        let paths = Paths::one(attribute.as_ref())?;
        let mut total = start.unwrap_or(Value::Int(0));
        for item in self.items(value)? {
            let item = self.along(&item, &paths.0, None)?;
            total = match numbers::calculate(Operator::Add, &total, &item) {
                Some(total) => total?,
                None if total.as_text().is_some() => return Err(Fault::new("`sum` does not join texts")),
                None => self.combine(Operator::Add, &total, &item)?,
            };
        }
        Ok(total)
    }

    fn groupby(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let [attribute, default, case] = given.bind("groupby", ["attribute", "default", "case_sensitive"])?;
        let (case, paths) = (is_set(case), Paths::one(attribute.as_ref())?);
        let mut keyed = Vec::new();
        for item in self.items(value)? {
            let key = self.along(&item, &paths.0, default.as_ref())?;
            let lowered = if case { key.clone() } else { self.lowered(key.clone())? };
            keyed.push(self.tuple(vec![lowered, key, item])?);
        }
        let by_first = Paths(vec![vec![Value::Int(0)]]);
        let keyed = self.sorted(keyed, &by_first, true, false)?;
        check_order(&keyed, 0)?;
        let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
        for entry in keyed {
            let Value::Tuple(entry) = entry else { continue };
            match groups.last_mut() {
                Some((lowered, _, items)) if lowered.equals(&entry[0]) => items.push(entry[2].clone()),
                _ => groups.push((entry[0].clone(), entry[1].clone(), vec![entry[2].clone()])),
            }
        }
        let mut made = Vec::with_capacity(groups.len());
        for (_, key, items) in groups {
            let items = self.list(items)?;
            made.push(self.tuple(vec![key, items])?);
        }
        self.list(made)
    }

    fn portions(&mut self, name: &str, value: &Value, given: Given) -> Answer<Value> {
        let counted = if name == "batch" { "linecount" } else { "slices" };
        let [count, fill] = given.bind(name, [counted, "fill_with"])?;
        let count = count.as_ref().and_then(numbers::whole).and_then(|count| usize::try_from(count).ok());
        let count =
            count.filter(|count| *count > 0).ok_or_else(|| Fault::new(format!("`{name}` needs a number")))?;
        let fill = fill.filter(|fill| !matches!(fill, Value::None));
        let items = self.items(value)?;
        self.meter.work(count as u64)?;
        drop(self.meter.hold(count.saturating_mul(size_of::<Value>()))?);
        let mut portions: Vec<Vec<Value>> = Vec::new();
        if name == "batch" {
            portions.extend(items.chunks(count).map(<[Value]>::to_vec));
            if let (Some(last), Some(fill)) = (portions.last_mut(), fill) {
                last.resize(count, fill);
            }
        } else {
            let (each, extra) = (items.len() / count, items.len() % count);
            let mut rest = items.into_iter();
            for at in 0..count {
                let mut portion: Vec<Value> = rest.by_ref().take(each + usize::from(at < extra)).collect();
                portion.extend(fill.clone().filter(|_| at >= extra));
                portions.push(portion);
            }
        }
        let made = portions.into_iter().map(|portion| self.list(portion)).collect::<Answer<Vec<Value>>>()?;
        Stream::made(if name == "batch" { "do_batch" } else { "do_slice" }, made, &self.meter)
    }

    fn map(&mut self, value: &Value, given: Given) -> Answer<Value> {
        if !value.is_true() {
            return Stream::made("do_map", Vec::new(), &self.meter);
        }
        let items = self.items(value)?;
        let mut made = Vec::with_capacity(items.len());
        if given.positional.is_empty() && given.named.iter().any(|(name, _)| &**name == "attribute") {
            let [attribute, default] = given.bind("map", ["attribute", "default"])?;
            let paths = Paths::one(attribute.as_ref())?;
            let default = default.filter(|default| !matches!(default, Value::None));
            for item in &items {
                made.push(self.along(item, &paths.0, default.as_ref())?);
            }
            return Stream::made("do_map", made, &self.meter);
        }
        let Some((filter, rest)) = given.positional.split_first() else {
            return Err(Fault::new("`map` needs a filter or an attribute"));
        };
        let filter = filter.as_text().ok_or_else(|| Fault::new("`map` needs the name of a filter"))?;
        for item in items {
            let given = Given { positional: rest.to_vec(), named: given.named.clone() };
            self.meter.work(1)?;
            made.push(self.filter(filter, item, given)?);
        }
        Stream::made("do_map", made, &self.meter)
    }

    /// `select`, `reject`, `selectattr` and `rejectattr`.
    fn select(&mut self, name: &str, value: &Value, given: Given) -> Answer<Value> {
        if !value.is_true() {
            return Stream::made("do_select", Vec::new(), &self.meter);
        }
        let wanted = name.starts_with("select");
        let mut rest = &given.positional[..];
        let mut paths = Paths(Vec::new());
        if name.ends_with("attr") {
            let Some((attribute, behind)) = rest.split_first() else {
                return Err(Fault::new(format!("`{name}` needs an attribute")));
            };
            (paths, rest) = (Paths::one(Some(attribute))?, behind);
        }
        let mut kept = Vec::new();
        for item in self.items(value)? {
            self.meter.work(1)?;
            let looked_at = self.along(&item, &paths.0, None)?;
            let passed = match rest.split_first() {
                None => looked_at.is_true(),
                Some((test, values)) => {
                    let test = test.as_text().ok_or_else(|| Fault::new(format!("`{name}` needs a test")))?;
                    let given = Given { positional: values.to_vec(), named: given.named.clone() };
                    self.check(test, &looked_at, given)?
                }
            };
            if passed == wanted {
                kept.push(item);
            }
        }
        Stream::made("do_select", kept, &self.meter)
    }
}

/// Refuses neighbours among sorted tuples whose keys have no order. Python's sort compares keys that are equal too.
fn check_order(sorted: &[Value], key: usize) -> Answer<()> {
    sorted.windows(2).try_for_each(|pair| match pair {
        [Value::Tuple(a), Value::Tuple(b)] => a[key].order(&b[key]).map(drop),
        _ => Ok(()),
    })
}

/// Attributes by which values are reached in an item. Each is a list of its parts: `a.b.0` is `a`, `b` and `0`.
struct Paths(Vec<Vec<Value>>);

impl Paths {
    fn one(attribute: Option<&Value>) -> Answer<Paths> {
        match attribute {
            None | Some(Value::None) => Ok(Paths(Vec::new())),
            Some(attribute) => match (attribute.as_text(), numbers::whole(attribute)) {
                (Some(text), _) => Ok(Paths(vec![Paths::parts(text)])),
                (_, Some(number)) => Ok(Paths(vec![vec![Value::Int(number)]])),
                _ => Err(Fault::new(format!("an attribute is a text or a number, not {}", attribute.kind()))),
            },
        }
    }

    /// The same for several attributes with commas between them. Without an attribute, the item itself is meant.
    fn several(attribute: Option<&Value>) -> Answer<Paths> {
        match attribute.and_then(Value::as_text) {
            Some(text) => Ok(Paths(text.split(',').map(Paths::parts).collect())),
            None => {
                let Paths(mut paths) = Paths::one(attribute)?;
                if paths.is_empty() {
                    paths.push(Vec::new());
                }
                Ok(Paths(paths))
            }
        }
    }

    fn parts(text: &str) -> Vec<Value> {
        let part = |part: &str| match part.parse::<i128>() {
            Ok(number) if part.bytes().all(|digit| digit.is_ascii_digit()) => Value::Int(number),
            _ => Value::text(part),
        };
        text.split('.').map(part).collect()
    }
}
