//! One file of Rust, and what is counted in it.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Methods and fields of transport that ask which recovery is in use, by name.
const RECOVERY_METHODS: [&str; 4] = ["is_on", "is_extended", "keeps_early", "extended"];
const RECOVERY_FIELDS: [&str; 3] = ["selective", "is_selective", "keeps_answers"];

#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// File, line and name.
    pub name: String,
    /// From its signature to its closing brace.
    pub lines: usize,
    /// Without self; none of a function that C calls.
    pub parameters: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The path below the folder that was read.
    pub name: String,
    /// Lines outside of tests.
    pub lines: usize,
    pub functions: Vec<Function>,
    /// Types that are defined in it; and whether they are public.
    pub types: Vec<(String, bool)>,
    pub unsafe_blocks: usize,
    /// Paths that are imported or named, from `crate` or `super`.
    pub paths: BTreeSet<Vec<String>>,
    questions: BTreeSet<usize>,
    test_lines: usize,
}

impl Source {
    /// Part `index` of its path, without `.rs`.
    pub fn module(&self, index: usize) -> &str {
        self.name.split('/').nth(index).map_or("", |part| part.trim_end_matches(".rs"))
    }

    /// The lines that ask which recovery is in use.
    pub fn recovery_questions(&self) -> Vec<String> {
        self.questions.iter().map(|line| format!("{}:{line}", self.name)).collect()
    }
}

/// Reads all files below `folder`, without tests.
pub(crate) fn read(folder: &Path) -> Result<Vec<Source>, String> {
    let mut found = Vec::new();
    collect(folder, &mut found)?;
    found.sort();
    found.iter().map(|file| parse(folder, file)).collect()
}

fn collect(folder: &Path, found: &mut Vec<std::path::PathBuf>) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match path.is_dir() {
            true if !["tests", "target"].contains(&name.as_str()) => collect(&path, found)?,
            false if name.ends_with(".rs") && name != "tests.rs" => found.push(path),
            _ => {}
        }
    }
    Ok(())
}

fn parse(folder: &Path, path: &Path) -> Result<Source, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file = syn::parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let name = path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned();
    let mut source = Source { name, ..Source::default() };
    source.visit_file(&file);
    source.lines = text.lines().count() - source.test_lines;
    Ok(source)
}

/// Names of types that are defined in more than one place, and where.
pub(crate) fn doubles(sources: &[&Source], only_public: bool) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in sources {
        for (name, _) in source.types.iter().filter(|(_, is_public)| *is_public || !only_public) {
            places.entry(name).or_default().push(&source.name);
        }
    }
    let doubles = places.into_iter().filter(|(_, files)| files.len() > 1);
    doubles.map(|(name, files)| format!("{name}: {}", files.join(", "))).collect()
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return attribute.path().is_ident("test") };
        list.path.is_ident("cfg")
            && list.tokens.to_string().split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
    })
}

fn lines(node: &impl Spanned) -> usize {
    let span = node.span();
    span.end().line + 1 - span.start().line
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

impl Source {
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let receivers = signature.inputs.iter().filter(|input| matches!(input, syn::FnArg::Receiver(_))).count();
        let (first, last) = (signature.span().start().line, block.span().end().line);
        self.functions.push(Function {
            name: format!("{}:{first} {}", self.name, signature.ident),
            lines: last + 1 - first,
            // What C calls has the parameters that C gives it.
            parameters: if signature.abi.is_some() { 0 } else { signature.inputs.len() - receivers },
        });
    }

    /// Every path that `tree` imports, behind `before`.
    fn import(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import(&path.tree, &with(&path.ident)),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before)),
            syn::UseTree::Name(name) => self.name(with(&name.ident)),
            syn::UseTree::Rename(rename) => self.name(with(&rename.ident)),
            syn::UseTree::Glob(_) => self.name(before.to_vec()),
        }
    }

    fn name(&mut self, path: Vec<String>) {
        if path.first().is_some_and(|first| ["crate", "super", "self"].contains(&first.as_str())) {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        match is_test(&item.attrs) {
            true => self.test_lines += lines(item),
            false => visit::visit_item_mod(self, item),
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if is_test(&item.attrs) {
            self.test_lines += lines(item);
            return;
        }
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.types.push((item.ident.to_string(), is_public(&item.vis)));
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.types.push((item.ident.to_string(), is_public(&item.vis)));
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.types.push((item.ident.to_string(), is_public(&item.vis)));
        visit::visit_item_trait(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.import(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.name(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.unsafe_blocks += 1;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if RECOVERY_METHODS.contains(&call.method.to_string().as_str()) && !is_header(&call.receiver) {
            self.questions.insert(call.method.span().start().line);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_field(&mut self, field: &'ast syn::ExprField) {
        if let syn::Member::Named(name) = &field.member
            && RECOVERY_FIELDS.contains(&name.to_string().as_str())
        {
            self.questions.insert(name.span().start().line);
        }
        visit::visit_expr_field(self, field);
    }
}

/// Whether it is a packet's BTH: its bit `extended` says what that packet has, and not what the peer gets.
fn is_header(receiver: &syn::Expr) -> bool {
    matches!(receiver, syn::Expr::MethodCall(call) if call.method == "bth")
}
