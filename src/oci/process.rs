//! A container's process: arguments, environment, directory, user. PURE.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::runtime_spec::{Process, User};
use super::users::{Database, Ids};
use super::{ImageConfig, Input, NodeFacts, SpecError, capabilities, security};
use crate::limits::{PROCESS_ARGS_MAX, PROCESS_ENV_MAX, SUPPLEMENTAL_GROUPS_MAX};
use crate::proto::runtime::v1::{ContainerConfig, LinuxContainerSecurityContext, SupplementalGroupsPolicy};

/// The default of containerd and Docker.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const TERM: &str = "TERM=xterm";

pub(super) fn of_container(
    input: &Input<'_>,
    context: &LinuxContainerSecurityContext,
) -> Result<Process, SpecError> {
    let config = input.config;
    Ok(Process {
        terminal: config.tty,
        user: user(input, context)?,
        args: args(config, input.image)?,
        env: env(input)?,
        cwd: cwd(config, input.image)?,
        capabilities: capabilities::of_container(context, input.node)?,
        rlimits: input.node.rlimits.clone(),
        no_new_privileges: context.no_new_privs,
        apparmor_profile: security::apparmor(input, context)?,
        oom_score_adj: oom_score_adj(config, input.node)?,
        selinux_label: input.selinux.map(|labels| labels.process.clone()).unwrap_or_default(),
    })
}

/// The process document (`exec --process`) of a command in a container: the first process of its `config.json`, with the user, the environment,
/// the directory and the confinement of that one, but for the command, and the terminal with its `TERM` (`execInternal`). What it does not
/// know of the document stays as it is.
///
/// # Errors
/// There is no command, a word of it cannot be an argument, or the file is not ours.
pub fn exec_process(config_json: &[u8], command: &[String], tty: bool) -> Result<Vec<u8>, SpecError> {
    #[derive(Deserialize)]
    struct Config {
        process: Value,
    }
    if command.is_empty() {
        return Err(SpecError::invalid("cmd", "it is empty; give the program to run"));
    }
    SpecError::at_most("cmd", command.len(), PROCESS_ARGS_MAX)?;
    // In a JSON text it can stand, and crun would cut the argument there.
    if command.iter().any(|word| word.contains('\0')) {
        return Err(SpecError::invalid("cmd", "an argument has a NUL byte"));
    }
    let not_ours =
        |error: String| SpecError::invalid("config.json", format!("{error}; create the container anew"));
    let config: Config = serde_json::from_slice(config_json).map_err(|error| not_ours(error.to_string()))?;
    let Value::Object(mut process) = config.process else {
        return Err(not_ours("its process is no object".to_owned()));
    };
    process.insert("terminal".to_owned(), tty.into());
    process.insert("args".to_owned(), command.into());
    if tty {
        let Value::Array(env) = process.entry("env").or_insert_with(|| Value::Array(Vec::new())) else {
            return Err(not_ours("its environment is no list".to_owned()));
        };
        // In the place of the container's own, as with containerd: the terminal is the client's.
        env.retain(|variable| !variable.as_str().is_some_and(|variable| variable.starts_with("TERM=")));
        env.push(TERM.into());
    }
    serde_json::to_vec(&process).map_err(|error| not_ours(error.to_string()))
}

/// The pod's command and arguments over the image's (`WithProcessArgs`):
///
/// | command | args | process                                  |
/// |---------|------|------------------------------------------|
/// | —       | —    | the image's entrypoint and its command   |
/// | —       | A    | the image's entrypoint and A             |
/// | C       | —    | C                                        |
/// | C       | A    | C and A                                  |
fn args(config: &ContainerConfig, image: &ImageConfig) -> Result<Vec<String>, SpecError> {
    let (mut program, mut args) = (&config.command, &config.args);
    if program.is_empty() {
        if args.is_empty() {
            args = &image.cmd;
        }
        // Docker resets an entrypoint by one empty word.
        if image.entrypoint != [""] {
            program = &image.entrypoint;
        }
    }
    if program.is_empty() && args.is_empty() {
        return Err(SpecError::invalid(
            "command",
            "neither the pod nor the image has one; set spec.containers[].command",
        ));
    }
    SpecError::at_most("command and args", program.len() + args.len(), PROCESS_ARGS_MAX)?;
    Ok(program.iter().chain(args).cloned().collect())
}

/// The default path, `TERM` for a terminal, the pod's host name; over them the image's variables and over these the
/// container's. A name's last value stands where its first one stood. containerd writes a name of the image that the container
/// sets too twice (`replaceOrAppendEnvValues`): the OCI runtime takes the last one, so that it is the same to the process.
fn env(input: &Input<'_>) -> Result<Vec<String>, SpecError> {
    let (config, image) = (input.config, input.image);
    SpecError::at_most("envs", image.env.len() + config.envs.len(), PROCESS_ENV_MAX)?;
    let mut env = Environment::default();
    env.set(PATH.to_owned());
    if config.tty {
        env.set(TERM.to_owned());
    }
    let hostname =
        if input.sandbox.hostname.is_empty() { &input.node.hostname } else { &input.sandbox.hostname };
    env.set(format!("HOSTNAME={hostname}"));
    for variable in &image.env {
        env.set(variable.clone());
    }
    for variable in &config.envs {
        let value = std::str::from_utf8(&variable.value).map_err(|_| {
            SpecError::invalid(
                "envs",
                format!("the value of {:?} is not UTF-8, which config.json must be", variable.key),
            )
        })?;
        if variable.key.is_empty() || variable.key.contains(['=', '\0']) || value.contains('\0') {
            return Err(SpecError::invalid(
                "envs",
                format!("{:?} cannot be a variable; rename it", variable.key),
            ));
        }
        env.set(format!("{}={value}", variable.key));
    }
    Ok(env.variables.into_iter().flatten().collect())
}

/// Variables, each once, with an index of their names: images and pods may have many.
#[derive(Default)]
struct Environment {
    /// `None` is one that was unset.
    variables: Vec<Option<String>>,
    places: BTreeMap<String, usize>,
}

impl Environment {
    /// Without `=` it says that there is no such variable, which a default could have.
    fn set(&mut self, variable: String) {
        let (name, value) = match variable.split_once('=') {
            Some((name, _)) => (name.to_owned(), Some(variable)),
            None => (variable, None),
        };
        if let Some(place) = self.places.get(&name) {
            self.variables[*place] = value;
        } else {
            self.places.insert(name, self.variables.len());
            self.variables.push(value);
        }
    }
}

fn cwd(config: &ContainerConfig, image: &ImageConfig) -> Result<String, SpecError> {
    let (field, cwd) = match (&*config.working_dir, &*image.working_dir) {
        ("", "") => return Ok("/".to_owned()),
        ("", of_image) => ("config.WorkingDir of the image's configuration", of_image),
        (own, _) => ("working_dir", own),
    };
    if cwd.starts_with('/') {
        Ok(cwd.to_owned())
    } else {
        Err(SpecError::invalid(
            field,
            format!("{cwd:?} is not an absolute path; set spec.containers[].workingDir"),
        ))
    }
}

/// Without the privilege for less it is what the agent has (containerd's `restrict_oom_score_adj`).
fn oom_score_adj(config: &ContainerConfig, node: &NodeFacts) -> Result<Option<i64>, SpecError> {
    let resources = config.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    match resources.map(|resources| resources.oom_score_adj) {
        Some(adj) if !(-1000..=1000).contains(&adj) => Err(SpecError::invalid(
            "linux.resources.oom_score_adj",
            format!("{adj} is not within -1000 and 1000"),
        )),
        adj => Ok(adj.map(|adj| adj.max(node.oom_score_adj_min))),
    }
}

/// The user: the pod's, by name before number, else the image's, else root. Groups: the user's own, those of the image that
/// name the user (not with the policy Strict) and those of the pod, in the order of their numbers.
///
/// The kubelet sends `run_as_group` only with a user (`GenerateUserString` refuses it alone).
fn user(input: &Input<'_>, context: &LinuxContainerSecurityContext) -> Result<User, SpecError> {
    let database = Database::new(input.passwd, input.group)?;
    let own = if context.run_as_username.is_empty() {
        context
            .run_as_user
            .as_ref()
            .map(|user| ("linux.security_context.run_as_user", user.value.to_string()))
    } else {
        Some(("linux.security_context.run_as_username", context.run_as_username.clone()))
    };
    let group = context.run_as_group.as_ref().map(|group| group.value);
    let (field, user) = match (own, group) {
        (Some((field, user)), Some(group)) => (field, format!("{user}:{group}")),
        (Some(user), None) => user,
        (None, Some(_)) => {
            return Err(SpecError::invalid(
                "linux.security_context.run_as_group",
                "a group is given without a user; set runAsUser too",
            ));
        }
        (None, None) => ("config.User of the image's configuration", input.image.user.clone()),
    };
    let mut gids = BTreeSet::new();
    let Ids { uid, gid } = if user.is_empty() { Ids::default() } else { database.resolve(field, &user)? };
    let policy = SupplementalGroupsPolicy::try_from(context.supplemental_groups_policy).map_err(|_| {
        let number = context.supplemental_groups_policy;
        SpecError::invalid(
            "linux.security_context.supplemental_groups_policy",
            format!("no policy has the number {number}"),
        )
    })?;
    let is_merged = policy == SupplementalGroupsPolicy::Merge;
    // A user who is root because nobody says otherwise has no group of its own with containerd, but for Merge.
    if is_merged || !user.is_empty() {
        gids.insert(gid);
    }
    if is_merged {
        let name = user.split(':').next().filter(|name| !name.is_empty()).unwrap_or("0");
        gids.extend(database.groups_of(name)?);
    }
    for group in &context.supplemental_groups {
        // As for users: runc takes no greater id.
        let gid =
            u32::try_from(*group).ok().filter(|gid| *gid <= i32::MAX.unsigned_abs()).ok_or_else(|| {
                SpecError::invalid(
                    "linux.security_context.supplemental_groups",
                    format!("{group} is no group id"),
                )
            })?;
        gids.insert(gid);
    }
    SpecError::at_most("supplemental_groups", gids.len(), SUPPLEMENTAL_GROUPS_MAX)?;
    Ok(User { uid, gid, additional_gids: gids.into_iter().collect() })
}
