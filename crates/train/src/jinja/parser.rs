//! Tokens to statements. Expressions are read in `expressions`.
//!
//! Nesting is counted, because the parser and the interpreter follow it on the stack.

use std::collections::HashMap;
use std::sync::Arc;

use super::fault::{Answer, Fault};
use super::lexer::{Placed, Token, tokens};
use super::syntax::{Callable, Expression, For, Name, Program, Statement, StatementKind, StepKind, Target};

/// Levels of blocks, brackets and unary operators inside each other.
const MOST_NESTED: usize = 96;

/// The program of a template.
pub(super) fn parse(source: &str) -> Answer<Program> {
    let mut parser = Parser { tokens: tokens(source)?, at: 0, nested: 0, ..Parser::default() };
    let body = parser.statements(&[]).map_err(|fault| fault.at(parser.line()))?;
    let Parser { names, functions, loops, marks, .. } = parser;
    Ok(Program { body, names, functions, loops, marks })
}

#[derive(Default)]
pub(super) struct Parser {
    tokens: Vec<Placed>,
    at: usize,
    nested: usize,
    names: Vec<Arc<str>>,
    known: HashMap<Arc<str>, Name>,
    functions: Vec<Callable>,
    loops: Vec<For>,
    marks: bool,
    /// Macros whose bodies are being parsed, and the names they use.
    open: Vec<Uses>,
    /// Loops around this place inside the innermost function.
    inside_loops: usize,
}

/// Names that make a macro take more than its parameters.
#[derive(Clone, Copy, Default)]
struct Uses {
    caller: bool,
    varargs: bool,
    kwargs: bool,
}

impl Parser {
    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    pub(super) fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(token, _)| token)
    }

    pub(super) fn peek_second(&self) -> &Token {
        self.tokens.get(self.at + 1).map_or(&Token::End, |(token, _)| token)
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    pub(super) fn skip(&mut self, tokens: usize) {
        self.at += tokens;
    }

    pub(super) fn step_back(&mut self) {
        self.at -= 1;
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if found == name)
    }

    pub(super) fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Token::Operator(found) if *found == operator)
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_operator(&mut self, operator: &str) -> Answer<()> {
        if self.skip_operator(operator) { Ok(()) } else { Err(self.unexpected(&format!("`{operator}`"))) }
    }

    pub(super) fn expect_name(&mut self) -> Answer<String> {
        match self.peek().clone() {
            Token::Name(name) => {
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    fn expect_keyword(&mut self, name: &str) -> Answer<()> {
        if self.skip_name(name) { Ok(()) } else { Err(self.unexpected(&format!("`{name}`"))) }
    }

    pub(super) fn unexpected(&self, wanted: &str) -> Fault {
        let found = match self.peek() {
            Token::Data(_) => "text".to_owned(),
            Token::VariableBegin => "`{{`".to_owned(),
            Token::VariableEnd => "`}}`".to_owned(),
            Token::BlockBegin => "`{%`".to_owned(),
            Token::BlockEnd => "`%}`".to_owned(),
            Token::Name(name) => format!("`{name}`"),
            Token::Text(_) => "a text".to_owned(),
            Token::Int(number) => format!("`{number}`"),
            Token::Float(number) => format!("`{number}`"),
            Token::Operator(operator) => format!("`{operator}`"),
            Token::End => "the end of the template".to_owned(),
        };
        Fault::new(format!("{wanted} is expected, not {found}")).at(self.line())
    }

    /// Reads something one level deeper.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Parser) -> Answer<T>) -> Answer<T> {
        if self.nested == MOST_NESTED {
            let words = format!("it nests more than {MOST_NESTED} blocks or brackets");
            return Err(Fault::new(words).at(self.line()));
        }
        self.nested += 1;
        let read = read(self);
        self.nested -= 1;
        read
    }

    pub(super) fn name(&mut self, name: &str) -> Name {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let (shared, number) = (Arc::<str>::from(name), self.names.len() as Name);
        self.names.push(Arc::clone(&shared));
        self.known.insert(shared, number);
        number
    }

    /// A name that is read. `caller`, `varargs` and `kwargs` are noted for the macros around it.
    pub(super) fn read_name(&mut self, name: &str) -> Name {
        for uses in &mut self.open {
            match name {
                "caller" => uses.caller = true,
                "varargs" => uses.varargs = true,
                "kwargs" => uses.kwargs = true,
                _ => {}
            }
        }
        self.name(name)
    }

    /// Statements up to a tag of one of these names, whose name is the next token.
    fn statements(&mut self, ends: &[&str]) -> Answer<Vec<Statement>> {
        self.deeper(|parser| {
            let mut body = Vec::new();
            loop {
                let line = parser.line();
                let kind = match parser.next() {
                    Token::End if ends.is_empty() => return Ok(body),
                    Token::End => {
                        return Err(Fault::new(format!("the template ends before `{}`", ends[0])).at(line));
                    }
                    Token::Data(data) => StatementKind::Data(data),
                    Token::VariableBegin => {
                        let value = parser.tuple()?;
                        if parser.next() != Token::VariableEnd {
                            parser.at -= 1;
                            return Err(parser.unexpected("`}}`"));
                        }
                        StatementKind::Print(value)
                    }
                    Token::BlockBegin => {
                        if ends.iter().any(|end| parser.is_name(end)) {
                            return Ok(body);
                        }
                        let kind = parser.statement()?;
                        parser.block_end()?;
                        kind
                    }
                    _ => return Err(parser.unexpected("text or a tag")),
                };
                body.push(Statement { line, kind });
            }
        })
    }

    fn block_end(&mut self) -> Answer<()> {
        if *self.peek() == Token::BlockEnd {
            self.at += 1;
            return Ok(());
        }
        Err(self.unexpected("`%}`"))
    }

    /// The body behind a tag's head, up to one of the ends, whose name is taken and returned.
    fn body(&mut self, ends: &[&str]) -> Answer<(Vec<Statement>, String)> {
        self.skip_operator(":");
        self.block_end()?;
        let body = self.statements(ends)?;
        Ok((body, self.expect_name()?))
    }

    fn statement(&mut self) -> Answer<StatementKind> {
        let tag = self.expect_name()?;
        match tag.as_str() {
            "if" => self.condition(),
            "for" => self.for_loop(),
            "set" => self.set(),
            "macro" => {
                let name = self.expect_name()?;
                let function = self.function(Some(&name), &["endmacro"])?;
                Ok(StatementKind::Macro { name: self.name(&name), function })
            }
            "call" => self.call_block(),
            "generation" => {
                self.marks = true;
                let function = self.function(None, &["endgeneration"])?;
                Ok(StatementKind::Generation { function })
            }
            "filter" => {
                let filters = self.filters(true)?;
                let (body, _) = self.body(&["endfilter"])?;
                Ok(StatementKind::FilterBlock { filters, body })
            }
            "with" => self.with(),
            "break" | "continue" if self.inside_loops == 0 => {
                Err(Fault::new(format!("`{tag}` stands outside a loop")).at(self.line()))
            }
            "break" => Ok(StatementKind::Break),
            "continue" => Ok(StatementKind::Continue),
            "block" => self.block(),
            "autoescape" => {
                if !(self.skip_name("false") || self.skip_name("False")) {
                    return Err(Fault::new("`autoescape` other than `false` is not known here"));
                }
                Ok(StatementKind::Scope(self.body(&["endautoescape"])?.0))
            }
            "print" => {
                let mut items = vec![self.expression()?];
                while self.skip_operator(",") {
                    items.push(self.expression()?);
                }
                Ok(StatementKind::Print(Expression::Concat(items)))
            }
            "extends" | "include" | "import" | "from" => {
                Err(Fault::new(format!("`{tag}` asks for another template, and there is none")))
            }
            _ => Err(Fault::new(format!("the tag `{tag}` is unknown here"))),
        }
        .map_err(|fault| fault.at(self.line()))
    }

    fn condition(&mut self) -> Answer<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple_without_condition(&[])?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match end.as_str() {
                "elif" => {}
                "else" => {
                    let (otherwise, _) = self.body(&["endif"])?;
                    return Ok(StatementKind::If { branches, otherwise });
                }
                _ => return Ok(StatementKind::If { branches, otherwise: Vec::new() }),
            }
        }
    }

    fn for_loop(&mut self) -> Answer<StatementKind> {
        let target = self.target(&["in"], false)?;
        self.expect_keyword("in")?;
        let items = self.tuple_without_condition(&["recursive"])?;
        let test = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.inside_loops += 1;
        let body = self.body(&["endfor", "else"]);
        self.inside_loops -= 1;
        let (body, end) = body?;
        let otherwise = if end == "else" { self.body(&["endfor"])?.0 } else { Vec::new() };
        self.loops.push(For { target, items, test, recursive, body, otherwise });
        Ok(StatementKind::For(self.loops.len() - 1))
    }

    fn set(&mut self) -> Answer<StatementKind> {
        let target = self.target(&[], true)?;
        if self.skip_operator("=") {
            return Ok(StatementKind::Set { target, value: self.tuple()? });
        }
        let filters = self.filters(false)?;
        let (body, _) = self.body(&["endset"])?;
        Ok(StatementKind::SetBlock { target, filters, body })
    }

    fn with(&mut self) -> Answer<StatementKind> {
        let mut bindings = Vec::new();
        while *self.peek() != Token::BlockEnd {
            if !bindings.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect_operator("=")?;
            bindings.push((target, self.expression()?));
        }
        let (body, _) = self.body(&["endwith"])?;
        Ok(StatementKind::With { bindings, body })
    }

    fn block(&mut self) -> Answer<StatementKind> {
        let name = self.expect_name()?;
        self.skip_name("scoped");
        let required = self.skip_name("required");
        let loops = std::mem::take(&mut self.inside_loops);
        let body = self.body(&["endblock"]);
        self.inside_loops = loops;
        self.skip_name(&name);
        let body = body?.0;
        if !required {
            return Ok(StatementKind::Block(body));
        }
        let is_blank = |statement: &Statement| matches!(&statement.kind, StatementKind::Data(text) if text.trim().is_empty());
        if !body.iter().all(is_blank) {
            return Err(Fault::new(format!("the block `{name}` is required, so it holds nothing itself")));
        }
        Ok(StatementKind::RequiredBlock(self.name(&name)))
    }

    fn call_block(&mut self) -> Answer<StatementKind> {
        let line = self.line();
        let parameters = if self.is_operator("(") { self.signature()? } else { Vec::new() };
        let call = self.expression()?;
        if !is_call(&call) {
            return Err(Fault::new("`call` needs a call").at(line));
        }
        let function = self.function(None, &["endcall"])?;
        self.functions[function].parameters = parameters;
        Ok(StatementKind::Call { call, function })
    }

    /// A body that is called, with its name and parameters where it is a macro.
    fn function(&mut self, name: Option<&str>, ends: &[&str]) -> Answer<usize> {
        let parameters = if name.is_some() { self.signature()? } else { Vec::new() };
        self.open.push(Uses::default());
        let loops = std::mem::take(&mut self.inside_loops);
        let body = self.body(ends);
        self.inside_loops = loops;
        let uses = self.open.pop().unwrap_or_default();
        self.functions.push(Callable {
            name: name.map(str::to_owned),
            parameters,
            body: body?.0,
            uses_caller: uses.caller,
            uses_varargs: uses.varargs,
            uses_kwargs: uses.kwargs,
        });
        Ok(self.functions.len() - 1)
    }

    fn signature(&mut self) -> Answer<Vec<(Name, Option<Expression>)>> {
        self.expect_operator("(")?;
        let mut parameters: Vec<(Name, Option<_>)> = Vec::new();
        while !self.is_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.expect_name()?;
            let name = self.name(&name);
            let default = if self.skip_operator("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return Err(Fault::new("a parameter without a default follows one with a default"));
            }
            parameters.push((name, default));
        }
        self.expect_operator(")")?;
        Ok(parameters)
    }

    /// Names left of `=` or `in`.
    fn target(&mut self, ends: &[&str], attributes: bool) -> Answer<Target> {
        let mut targets = Vec::new();
        let mut several = false;
        loop {
            let at_end = ends.iter().any(|end| self.is_name(end));
            if at_end || matches!(self.peek(), Token::BlockEnd) || self.is_operator(")") {
                break;
            }
            targets.push(self.single_target(attributes)?);
            if !self.skip_operator(",") {
                break;
            }
            several = true;
        }
        match (several, targets.pop()) {
            (false, Some(target)) => Ok(target),
            (_, None) => Err(self.unexpected("a name")),
            (true, Some(last)) => {
                targets.push(last);
                Ok(Target::Several(targets))
            }
        }
    }

    fn single_target(&mut self, attributes: bool) -> Answer<Target> {
        if self.skip_operator("(") {
            let target = self.deeper(|parser| parser.target(&[], attributes))?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if ["true", "false", "none", "True", "False", "None"].contains(&name.as_str()) {
            return Err(Fault::new(format!("`{name}` cannot be assigned to")).at(self.line()));
        }
        if attributes && self.skip_operator(".") {
            let attribute = self.expect_name()?;
            return Ok(Target::Attribute(self.name(&name), attribute.into()));
        }
        Ok(Target::Name(self.name(&name)))
    }
}

fn is_call(expression: &Expression) -> bool {
    match expression {
        Expression::Chain(_, steps) => {
            matches!(steps.last().map(|step| &step.kind), Some(StepKind::Call(_)))
        }
        _ => false,
    }
}
