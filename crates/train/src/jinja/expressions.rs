//! Tokens to expressions, in the order of Jinja's operators: condition, `or`, `and`, `not`, comparison, sum, `~`,
//! product, power, sign, and behind them attributes, items, calls, filters and tests.

use std::sync::Arc;

use super::fault::{Answer, Fault};
use super::lexer::Token;
use super::parser::Parser;
use super::syntax::{Arguments, Comparison, Constant, Expression, Operator, Step, StepKind};

impl Parser {
    /// An expression, or several with commas between them.
    pub(super) fn tuple(&mut self) -> Answer<Expression> {
        self.tuple_of(&[], true, false)
    }

    /// The same without `a if b`, since an `if` there belongs to the tag.
    pub(super) fn tuple_without_condition(&mut self, ends: &[&str]) -> Answer<Expression> {
        self.tuple_of(ends, false, false)
    }

    fn tuple_of(&mut self, ends: &[&str], conditions: bool, parentheses: bool) -> Answer<Expression> {
        let (mut items, mut several) = (Vec::new(), false);
        loop {
            let closed = matches!(self.peek(), Token::VariableEnd | Token::BlockEnd) || self.is_operator(")");
            if closed || ends.iter().any(|end| self.is_name(end)) {
                break;
            }
            items.push(if conditions { self.expression()? } else { self.deeper(Parser::any)? });
            if !self.skip_operator(",") {
                break;
            }
            several = true;
        }
        match items.pop() {
            Some(item) if !several => Ok(item),
            None if !several && !parentheses => Err(self.unexpected("an expression")),
            last => {
                items.extend(last);
                Ok(Expression::Tuple(items))
            }
        }
    }

    pub(super) fn expression(&mut self) -> Answer<Expression> {
        self.deeper(|parser| {
            let mut value = parser.any()?;
            let mut conditions = 0;
            while parser.skip_name("if") {
                conditions += 1;
                if conditions > 16 {
                    return Err(parser.unexpected("an end of the conditions"));
                }
                let test = Box::new(parser.any()?);
                let otherwise =
                    if parser.skip_name("else") { Some(Box::new(parser.expression()?)) } else { None };
                value = Expression::Condition { test, then: Box::new(value), otherwise };
            }
            Ok(value)
        })
    }

    /// `a or b`.
    fn any(&mut self) -> Answer<Expression> {
        let mut items = vec![self.all()?];
        while self.skip_name("or") {
            items.push(self.all()?);
        }
        Ok(single(items).unwrap_or_else(Expression::Or))
    }

    /// `a and b`.
    fn all(&mut self) -> Answer<Expression> {
        let mut items = vec![self.negation()?];
        while self.skip_name("and") {
            items.push(self.negation()?);
        }
        Ok(single(items).unwrap_or_else(Expression::And))
    }

    fn negation(&mut self) -> Answer<Expression> {
        if self.skip_name("not") {
            let inner = self.deeper(Parser::negation)?;
            return Ok(Expression::Not(Box::new(inner)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Answer<Expression> {
        let first = self.arithmetic(0)?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Token::Operator("==") => Comparison::Equal,
                Token::Operator("!=") => Comparison::Unequal,
                Token::Operator("<") => Comparison::Less,
                Token::Operator("<=") => Comparison::LessEqual,
                Token::Operator(">") => Comparison::Greater,
                Token::Operator(">=") => Comparison::GreaterEqual,
                Token::Name(name) if name == "in" => Comparison::In,
                Token::Name(name) if name == "not" => {
                    if !matches!(self.peek_second(), Token::Name(name) if name == "in") {
                        break;
                    }
                    self.skip(1);
                    Comparison::NotIn
                }
                _ => break,
            };
            self.skip(1);
            rest.push((comparison, self.arithmetic(0)?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Compare(Box::new(first), rest) })
    }

    /// Sums (rank 0), texts joined by `~` (1), products (2) and powers (3), each of operands of the next rank.
    fn arithmetic(&mut self, rank: usize) -> Answer<Expression> {
        if rank == 1 {
            let mut items = vec![self.arithmetic(2)?];
            while self.skip_operator("~") {
                items.push(self.arithmetic(2)?);
            }
            return Ok(single(items).unwrap_or_else(Expression::Concat));
        }
        let operand =
            |parser: &mut Parser| if rank == 3 { parser.signed(true) } else { parser.arithmetic(rank + 1) };
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some(operator) = self.operator(rank) {
            self.skip(1);
            rest.push((operator, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Arithmetic(Box::new(first), rest) })
    }

    fn operator(&self, rank: usize) -> Option<Operator> {
        let Token::Operator(found) = self.peek() else { return None };
        match (rank, *found) {
            (0, "+") => Some(Operator::Add),
            (0, "-") => Some(Operator::Subtract),
            (2, "*") => Some(Operator::Multiply),
            (2, "/") => Some(Operator::Divide),
            (2, "//") => Some(Operator::FloorDivide),
            (2, "%") => Some(Operator::Remainder),
            (3, "**") => Some(Operator::Power),
            _ => None,
        }
    }

    /// A value with its signs; a filter belongs to the value with its signs (`-1|abs` is 1).
    fn signed(&mut self, filters: bool) -> Answer<Expression> {
        let value = if self.skip_operator("-") {
            Expression::Negative(Box::new(self.deeper(|parser| parser.signed(false))?))
        } else if self.skip_operator("+") {
            Expression::Positive(Box::new(self.deeper(|parser| parser.signed(false))?))
        } else {
            self.primary()?
        };
        let mut steps = Vec::new();
        self.postfix(&mut steps)?;
        if filters {
            self.filters_and_tests(&mut steps)?;
        }
        Ok(if steps.is_empty() { value } else { Expression::Chain(Box::new(value), steps) })
    }

    fn primary(&mut self) -> Answer<Expression> {
        let line = self.line();
        match self.next() {
            Token::Name(name) => Ok(match name.as_str() {
                "true" | "True" => Expression::Constant(Constant::Bool(true)),
                "false" | "False" => Expression::Constant(Constant::Bool(false)),
                "none" | "None" => Expression::Constant(Constant::None),
                name => Expression::Name(self.read_name(name)),
            }),
            Token::Text(mut text) => {
                while let Token::Text(more) = self.peek() {
                    text.push_str(more);
                    self.skip(1);
                }
                Ok(Expression::Constant(Constant::Text(text.into())))
            }
            Token::Int(number) => Ok(Expression::Constant(Constant::Int(number))),
            Token::Float(number) => Ok(Expression::Constant(Constant::Float(number))),
            Token::Operator("(") => {
                let inner = self.deeper(|parser| parser.tuple_of(&[], true, true))?;
                self.expect_operator(")")?;
                Ok(inner)
            }
            Token::Operator("[") => {
                let items = self.items("]", Parser::expression)?;
                Ok(Expression::List(items))
            }
            Token::Operator("{") => {
                let pairs = self.items("}", |parser| {
                    let key = parser.expression()?;
                    parser.expect_operator(":")?;
                    Ok((key, parser.expression()?))
                })?;
                Ok(Expression::Dict(pairs))
            }
            _ => {
                self.step_back();
                Err(self.unexpected("an expression").at(line))
            }
        }
    }

    /// Items with commas between them, up to the closing bracket.
    fn items<T>(&mut self, close: &str, read: impl Fn(&mut Parser) -> Answer<T>) -> Answer<Vec<T>> {
        let mut items = Vec::new();
        while !self.is_operator(close) {
            items.push(read(self)?);
            if !self.skip_operator(",") {
                break;
            }
        }
        self.expect_operator(close)?;
        Ok(items)
    }

    /// Attributes, items and calls.
    fn postfix(&mut self, steps: &mut Vec<Step>) -> Answer<()> {
        loop {
            let line = self.line();
            let kind = match self.peek() {
                Token::Operator(".") => {
                    self.skip(1);
                    match self.next() {
                        Token::Name(name) => StepKind::Attribute(name.into()),
                        Token::Int(number) => StepKind::Item(Expression::Constant(Constant::Int(number))),
                        _ => {
                            self.step_back();
                            return Err(self.unexpected("a name or a number"));
                        }
                    }
                }
                Token::Operator("[") => {
                    self.skip(1);
                    self.deeper(Parser::subscript)?
                }
                Token::Operator("(") => StepKind::Call(self.arguments()?),
                _ => return Ok(()),
            };
            steps.push(Step { line, kind });
        }
    }

    /// Reads what stands behind `[`.
    fn subscript(&mut self) -> Answer<StepKind> {
        let mut parts: [Option<Expression>; 3] = [None, None, None];
        let mut colons = 0;
        while !self.is_operator("]") && !self.is_operator(",") {
            if self.skip_operator(":") {
                colons += 1;
                if colons > 2 {
                    return Err(self.unexpected("`]`"));
                }
            } else if parts[colons].is_none() {
                parts[colons] = Some(self.expression()?);
            } else {
                return Err(self.unexpected("`]`"));
            }
        }
        if self.is_operator(",") {
            let mut items: Vec<Expression> = parts.into_iter().flatten().collect();
            while self.skip_operator(",") && !self.is_operator("]") {
                items.push(self.expression()?);
            }
            self.expect_operator("]")?;
            return Ok(StepKind::Item(Expression::Tuple(items)));
        }
        self.expect_operator("]")?;
        match (colons, parts) {
            (0, [Some(item), _, _]) => Ok(StepKind::Item(item)),
            (0, _) => Ok(StepKind::Item(Expression::Tuple(Vec::new()))),
            (_, parts) => Ok(StepKind::Slice(Box::new(parts))),
        }
    }

    /// Filters, tests, and calls of their results.
    fn filters_and_tests(&mut self, steps: &mut Vec<Step>) -> Answer<()> {
        loop {
            let line = self.line();
            let kind = if self.is_operator("|") {
                self.skip(1);
                self.filter()?
            } else if self.skip_name("is") {
                self.test()?
            } else if self.is_operator("(") {
                StepKind::Call(self.arguments()?)
            } else {
                return Ok(());
            };
            steps.push(Step { line, kind });
        }
    }

    /// Filters of a block: the first without its `|` where `inline` is set.
    pub(super) fn filters(&mut self, inline: bool) -> Answer<Vec<Step>> {
        let mut steps = Vec::new();
        let mut inline = inline;
        while inline || self.skip_operator("|") {
            inline = false;
            let line = self.line();
            steps.push(Step { line, kind: self.filter()? });
        }
        Ok(steps)
    }

    fn dotted(&mut self) -> Answer<Arc<str>> {
        let mut name = self.expect_name()?;
        while self.skip_operator(".") {
            name.push('.');
            name.push_str(&self.expect_name()?);
        }
        Ok(name.into())
    }

    fn filter(&mut self) -> Answer<StepKind> {
        let name = self.dotted()?;
        let arguments = if self.is_operator("(") { self.arguments()? } else { Arguments::default() };
        Ok(StepKind::Filter(name, arguments))
    }

    fn test(&mut self) -> Answer<StepKind> {
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        let arguments = match self.peek() {
            Token::Operator("(") => self.arguments()?,
            Token::Name(next) if ["else", "or", "and"].contains(&next.as_str()) => Arguments::default(),
            Token::Name(next) if next == "is" => {
                return Err(Fault::new("tests cannot follow each other").at(self.line()));
            }
            Token::Name(_)
            | Token::Text(_)
            | Token::Int(_)
            | Token::Float(_)
            | Token::Operator("[" | "{") => {
                let value = self.deeper(Parser::primary)?;
                let mut steps = Vec::new();
                self.postfix(&mut steps)?;
                let value = if steps.is_empty() { value } else { Expression::Chain(Box::new(value), steps) };
                Arguments { positional: vec![value], ..Arguments::default() }
            }
            _ => Arguments::default(),
        };
        Ok(StepKind::Test { name, arguments, negated })
    }

    /// The arguments of a call, with their parentheses.
    fn arguments(&mut self) -> Answer<Arguments> {
        self.expect_operator("(")?;
        self.deeper(|parser| {
            let mut arguments = Arguments::default();
            while !parser.is_operator(")") {
                let line = parser.line();
                let wrong = || Fault::new("the arguments of a call are out of order").at(line);
                let Arguments { positional, named, spread, spread_named } = &mut arguments;
                if parser.skip_operator("*") {
                    if spread.is_some() || spread_named.is_some() {
                        return Err(wrong());
                    }
                    *spread = Some(Box::new(parser.expression()?));
                } else if parser.skip_operator("**") {
                    if spread_named.is_some() {
                        return Err(wrong());
                    }
                    *spread_named = Some(Box::new(parser.expression()?));
                } else if let (Token::Name(name), Token::Operator("=")) =
                    (parser.peek(), parser.peek_second())
                {
                    if spread_named.is_some() {
                        return Err(wrong());
                    }
                    let name = Arc::from(name.as_str());
                    parser.skip(2);
                    named.push((name, parser.expression()?));
                } else {
                    if spread.is_some() || spread_named.is_some() || !named.is_empty() {
                        return Err(wrong());
                    }
                    positional.push(parser.expression()?);
                }
                if !parser.skip_operator(",") {
                    break;
                }
            }
            parser.expect_operator(")")?;
            Ok(arguments)
        })
    }
}

/// The only item, or an error that holds all items if they are more or fewer.
fn single(mut items: Vec<Expression>) -> Result<Expression, Vec<Expression>> {
    match items.pop() {
        Some(item) if items.is_empty() => Ok(item),
        last => {
            items.extend(last);
            Err(items)
        }
    }
}
