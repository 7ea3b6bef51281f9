//! What the server has said, what the kernel has been told, and the transaction that leads from one to the other. PURE.
//!
//! Policies that isolate no pod of this node are records only. One that does has chains, and each selector of its peers (`Group`) a
//! set of addresses, shared by all policies with the same selector. A pod elsewhere is a few bits (`Bits`): of which sets it is.

use std::net::IpAddr;

use super::Transaction;
use super::draft::Draft;
use super::policy::{self, DIRECTIONS, Direction, Parsed, Spec};
use super::records::{Addresses, NamespaceId, Namespaces, NewPod, Pod, Pods, Read, UidDigest};
use super::rules::{self, Chain, Element, Kind, Op};
use super::sets::Sets;
use super::words::{WordId, Words};
use crate::decode::Node;
use crate::kube;
use crate::limits::{
    NETWORK_POLICIES_MAX, NETWORK_POLICY_BYTES_MAX, NETWORK_POLICY_MEMBERS_MAX, NETWORK_POLICY_NEW_PODS_MAX,
    NETWORK_POLICY_PODS_MAX, NETWORK_POLICY_SPECS_BYTES_MAX,
};
use crate::model::SortedMap;

/// What a list is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// networking.k8s.io/v1 `NetworkPolicy`.
    Policies,
    /// v1 Namespace.
    Namespaces,
    /// v1 Pod.
    Pods,
}

impl Resource {
    /// Its path in the API.
    pub fn path(self) -> kube::Resource {
        match self {
            Self::Policies => kube::Resource::NETWORK_POLICIES,
            Self::Namespaces => kube::Resource::NAMESPACES,
            Self::Pods => kube::Resource::PODS,
        }
    }

    /// As in paths.
    pub fn plural(self) -> &'static str {
        self.path().plural
    }
}

/// State of one list.
#[derive(Clone, Copy, Debug, Default)]
struct Listing {
    /// Number of the list that is under way, or was the last.
    generation: u32,
    is_under_way: bool,
    /// One was complete.
    is_whole: bool,
    /// Something did not fit.
    is_full: bool,
}

#[derive(Debug)]
struct Policy {
    number: u32,
    namespace: NamespaceId,
    /// Empty: stands for those of its namespace that did not fit.
    name: Box<str>,
    spec: Spec,
    /// The texts that `spec` names.
    words: Box<[WordId]>,
    /// Bytes of `spec`.
    bytes: usize,
    /// Combinations it is in: its chains exist while there are any.
    users: u32,
    generation: u32,
    /// Deleted, or in its place there is another: it is removed once the kernel has been told.
    is_gone: bool,
}

/// Pods of this node that the same policies isolate in one direction, and their chain.
#[derive(Debug)]
struct Combination {
    number: u32,
    direction: Direction,
    policies: Vec<u32>,
    /// Addresses.
    users: u32,
}

/// Chains of an isolated address: of ingress and of egress.
type Isolated = [Option<u32>; 2];

/// The network policies of a node.
#[derive(Debug)]
pub struct Controller {
    node: Box<str>,
    words: Words,
    namespaces: Namespaces,
    pods: Pods,
    /// Pods of this node that the server has not shown with their address yet, the oldest first; they are in `pods` too.
    new_pods: Vec<(UidDigest, Addresses)>,
    /// By number.
    policies: Vec<Policy>,
    listings: [Listing; 3],
    /// Of the next policy, combination, group or named port.
    number: u32,
    are_policies_changed: bool,
    /// The table is there, with what follows.
    is_applied: bool,
    isolated: SortedMap<IpAddr, Isolated>,
    combinations: Vec<Combination>,
    sets: Sets,
    /// Sentences for the log.
    problems: Vec<String>,
}

impl Controller {
    /// Of the node with this name; nothing is known yet.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            words: Words::default(),
            namespaces: Namespaces::default(),
            pods: Pods::default(),
            new_pods: Vec::new(),
            policies: Vec::new(),
            listings: Default::default(),
            number: 0,
            are_policies_changed: false,
            is_applied: false,
            isolated: SortedMap::new(),
            combinations: Vec::new(),
            sets: Sets::default(),
            problems: Vec::new(),
        }
    }

    // ---- what the server says --------------------------------------------------------------------------------

    /// A list begins: what it does not name before it ends no longer exists.
    pub fn list_begins(&mut self, of: Resource) {
        let listing = &mut self.listings[of as usize];
        *listing = Listing {
            generation: listing.generation.wrapping_add(1),
            is_under_way: true,
            is_full: false,
            ..*listing
        };
    }

    /// The list that is under way, if one is, ends.
    pub fn settled(&mut self, of: Resource) {
        let listing = &mut self.listings[of as usize];
        if !std::mem::take(&mut listing.is_under_way) {
            return;
        }
        listing.is_whole = true;
        let now = listing.generation;
        match of {
            Resource::Policies => self.remove_policies(|policy| policy.generation != now),
            Resource::Namespaces => {
                let gone = self.namespaces.remove(&mut self.words, |_, generation| generation != now);
                self.pods.mark_namespaces(&gone);
            }
            Resource::Pods => {
                for (uid, _) in &self.new_pods {
                    self.pods.keep(*uid, now);
                }
                self.pods.delete_others(now);
            }
        }
    }

    /// There is room again for what did not fit.
    pub fn has_room(&self, of: Resource) -> bool {
        self.listings[of as usize].is_full
            && match of {
                Resource::Policies => self.policies.len() < NETWORK_POLICIES_MAX,
                Resource::Namespaces => false,
                Resource::Pods => self.has_room_for_pods(),
            }
    }

    fn has_room_for_pods(&self) -> bool {
        self.pods.len() < NETWORK_POLICY_PODS_MAX && self.bytes() < NETWORK_POLICY_BYTES_MAX
    }

    /// Something of a list did not fit; true if this is the first.
    fn fill(&mut self, of: Resource) -> bool {
        !std::mem::replace(&mut self.listings[of as usize].is_full, true)
    }

    /// The object was listed, added or changed.
    pub fn apply(&mut self, of: Resource, object: &Node) {
        let generation = self.listings[of as usize].generation;
        match of {
            Resource::Policies => self.apply_policy(object, generation),
            Resource::Namespaces => match self.namespaces.apply(object, generation, &mut self.words) {
                Ok(changed) => self.pods.mark_namespaces(changed.as_slice()),
                Err(()) => {
                    if self.fill(of) {
                        let problem = "there are too many namespaces; no namespaceSelector selects those beyond the limit";
                        self.problems.push(problem.to_owned());
                    }
                }
            },
            Resource::Pods => self.apply_pod(object, generation),
        }
    }

    /// The object was deleted.
    pub fn delete(&mut self, of: Resource, object: &Node) {
        let Some(metadata) = object.field("metadata") else { return };
        let text = |field| metadata.field(field).and_then(Node::text).unwrap_or_default();
        match of {
            Resource::Policies => {
                if let Some(namespace) = self.namespaces.hold(text("namespace"), true) {
                    let name = text("name");
                    self.remove_policies(|policy| policy.namespace == namespace && *policy.name == *name);
                    self.namespaces.release(namespace);
                }
            }
            Resource::Namespaces => {
                let gone = self.namespaces.remove(&mut self.words, |name, _| name == text("name"));
                self.pods.mark_namespaces(&gone);
            }
            Resource::Pods => self.pods.delete(UidDigest::of(text("uid"))),
        }
    }

    fn apply_pod(&mut self, object: &Node, generation: u32) {
        let Some(read) = Read::of(object, &self.node) else { return };
        // This node's pods, some hundreds at most, always fit: without a record they would not be isolated.
        if !read.is_local
            && !read.addresses.is_empty()
            && !self.pods.has(read.uid)
            && !self.has_room_for_pods()
        {
            if self.fill(Resource::Pods) {
                self.problems.push(format!(
                    "pod {}/{}: there is no room for further pods beside {} of other nodes; no policy allows them as peers",
                    read.namespace,
                    read.name,
                    self.pods.len()
                ));
            }
            return;
        }
        // Whoever else has the address by the server's word may have had it before an outage: rules of both hold then.
        if read.is_local {
            let digest = NewPod::digest(read.namespace, read.name);
            self.forget_new(|uid, addresses| uid == digest && addresses.share(read.addresses));
        }
        self.pods.apply(&read, generation, &mut self.namespaces, &mut self.words);
    }

    /// A pod of this node has these addresses from now on; the server does not know them yet.
    pub fn announce(&mut self, pod: &NewPod) {
        let object = pod.object(&self.node);
        let Some(read) = Read::of(&object, &self.node).filter(|read| !read.addresses.is_empty()) else {
            return;
        };
        self.forget_new(|uid, addresses| uid == read.uid || addresses.share(read.addresses));
        let generation = self.listings[Resource::Pods as usize].generation;
        self.pods.apply(&read, generation, &mut self.namespaces, &mut self.words);
        if self.new_pods.len() == NETWORK_POLICY_NEW_PODS_MAX {
            let (oldest, _) = self.new_pods.remove(0);
            self.pods.delete(oldest);
        }
        self.new_pods.push((read.uid, read.addresses));
    }

    /// The server has not shown that pod, which was announced, with its address yet.
    pub fn has_new(&self, pod: &NewPod) -> bool {
        let digest = NewPod::digest(&pod.namespace, &pod.name);
        self.new_pods.iter().any(|(uid, _)| *uid == digest)
    }

    /// The pod of that name, which was announced, has no network any more.
    pub fn ended(&mut self, namespace: &str, name: &str) {
        let digest = NewPod::digest(namespace, name);
        self.forget_new(|uid, _| uid == digest);
    }

    /// The new pods for which it is true are known from the server, or are gone.
    fn forget_new(&mut self, is_over: impl Fn(UidDigest, Addresses) -> bool) {
        let Self { new_pods, pods, .. } = self;
        new_pods.retain(|(uid, addresses)| {
            let is_over = is_over(*uid, *addresses);
            if is_over {
                pods.delete(*uid);
            }
            !is_over
        });
    }

    fn apply_policy(&mut self, object: &Node, generation: u32) {
        let Some(metadata) = object.field("metadata") else { return };
        let text = |field| metadata.field(field).and_then(Node::text);
        let (Some(namespace_name), Some(mut name)) = (text("namespace"), text("name")) else { return };
        let Some(namespace) = self.namespaces.hold(namespace_name, true) else { return };
        let place = |policies: &[Policy], name: &str| {
            let is_it =
                |policy: &Policy| policy.namespace == namespace && *policy.name == *name && !policy.is_gone;
            policies.iter().position(is_it)
        };
        let mut known = place(&self.policies, name);
        let spec = object.field("spec");
        let mut parsed = if known.is_none() && self.policies.len() >= NETWORK_POLICIES_MAX {
            if self.fill(Resource::Policies) {
                self.problems.push(format!(
                    "NetworkPolicy {namespace_name}/{name} is beyond the {NETWORK_POLICIES_MAX} that a node keeps; connections of \
                     all pods of its namespace are denied"
                ));
            }
            name = "";
            known = place(&self.policies, name);
            Parsed::deny((true, true), None)
        } else {
            policy::read(spec, namespace, &mut self.words)
        };
        let others = self.policies.iter().enumerate().filter(|(place, _)| Some(*place) != known);
        let others: usize = others.map(|(_, policy)| policy.bytes).sum();
        if others + parsed.bytes > NETWORK_POLICY_SPECS_BYTES_MAX {
            for word in parsed.words {
                self.words.release(word);
            }
            let why = format!(
                "does not fit into the {NETWORK_POLICY_SPECS_BYTES_MAX} bytes of all policies; it isolates all of its namespace"
            );
            parsed = Parsed::deny(policy::types(spec), Some(why));
        }
        let Parsed { spec, words, bytes, why } = parsed;
        if let Some(place) = known {
            let policy = &mut self.policies[place];
            policy.generation = generation;
            if policy.spec == spec {
                for word in words {
                    self.words.release(word);
                }
                return self.namespaces.release(namespace);
            }
            policy.is_gone = true;
        }
        if let Some(why) = why {
            self.problems.push(format!(
                "NetworkPolicy {namespace_name}/{name}: {why}; it allows nothing to the pods that it selects"
            ));
        }
        let number = self.next_number();
        let name = name.into();
        self.policies.push(Policy {
            number,
            namespace,
            name,
            spec,
            words,
            bytes,
            users: 0,
            generation,
            is_gone: false,
        });
        self.are_policies_changed = true;
    }

    fn remove_policies(&mut self, is_gone: impl Fn(&Policy) -> bool) {
        for policy in &mut self.policies {
            if is_gone(policy) {
                policy.is_gone = true;
                self.are_policies_changed = true;
            }
        }
    }

    fn next_number(&mut self) -> u32 {
        // After four thousand million changes numbers of long ago are free again.
        self.number = self.number.wrapping_add(1);
        self.number
    }

    // ---- what the task asks ----------------------------------------------------------------------------------

    /// The list of policies was complete once.
    pub fn knows_policies(&self) -> bool {
        self.listings[Resource::Policies as usize].is_whole
    }

    /// There are policies: pods and namespaces are to be followed.
    pub fn needs_pods(&self) -> bool {
        self.policies.iter().any(|policy| !policy.is_gone)
    }

    /// All lists were complete once.
    pub fn is_whole(&self) -> bool {
        self.listings.iter().all(|listing| listing.is_whole)
    }

    /// Sentences about what does not fit or cannot be understood, since the last call.
    pub fn take_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.problems)
    }

    /// Pods, and bytes of all records.
    pub fn held(&self) -> (usize, usize) {
        (self.pods.len(), self.bytes())
    }

    fn bytes(&self) -> usize {
        self.words.bytes()
            + self.namespaces.bytes()
            + self.pods.bytes()
            + self.policies.capacity() * size_of::<Policy>()
            + self.policies.iter().map(|policy| policy.bytes).sum::<usize>()
            + self.sets.bytes()
    }

    /// There are no policies: pods and namespaces are not followed any more, and the table ends ([`Transaction::end`]).
    pub fn forget_pods(&mut self) {
        let gone = self.namespaces.remove(&mut self.words, |_, _| true);
        self.pods.mark_namespaces(&gone);
        self.pods.delete_others(self.listings[Resource::Pods as usize].generation.wrapping_add(1));
        for of in [Resource::Namespaces, Resource::Pods] {
            let listing = &mut self.listings[of as usize];
            *listing = Listing { generation: listing.generation, ..Listing::default() };
        }
        self.clear();
        for place in std::mem::take(&mut self.pods.changed) {
            self.pods.applied(place, &mut self.namespaces, &mut self.words);
        }
        self.drop_policies();
        self.new_pods.clear();
        // Pages of thousands of pods go back to the system.
        self.pods = Pods::default();
    }

    /// The kernel may have anything: the next transaction replaces it all.
    pub fn clear(&mut self) {
        self.is_applied = false;
        self.isolated.clear();
        self.combinations.clear();
        self.sets = Sets::default();
        for policy in &mut self.policies {
            policy.users = 0;
        }
        self.pods.mark_all();
    }

    // ---- transactions ----------------------------------------------------------------------------------------

    /// The transaction that brings the kernel's table to what the server has said. It counts as done: after a failure, `clear`.
    pub fn transaction(&mut self) -> Transaction {
        let mut draft = Draft::default();
        let is_new = !std::mem::replace(&mut self.is_applied, true);
        if is_new {
            rules::table(&mut draft.made);
        }
        if is_new || self.pods.is_local_changed || self.are_policies_changed {
            self.isolate(&mut draft);
        }
        if self.sets.place(&self.pods, &self.namespaces, &mut draft) {
            self.problems.push(format!(
                "the peers of all policies are more than {NETWORK_POLICY_MEMBERS_MAX} pods; no policy allows those beyond"
            ));
        }
        for place in std::mem::take(&mut self.pods.changed) {
            self.pods.applied(place, &mut self.namespaces, &mut self.words);
        }
        self.release(&mut draft);
        self.drop_policies();
        (self.pods.is_local_changed, self.are_policies_changed) = (false, false);
        Transaction(draft.into_ops())
    }

    /// The policies that isolate the pod in each direction.
    fn isolating(&self, pod: &Pod) -> [Vec<u32>; 2] {
        DIRECTIONS.map(|direction| {
            let is_for = |policy: &&Policy| {
                !policy.is_gone
                    && policy.namespace == pod.namespace
                    && policy.spec.rules(direction).is_some()
                    && pod.labels.as_ref().is_none_or(|labels| policy.spec.pods.matches(labels))
            };
            self.policies.iter().filter(is_for).map(|policy| policy.number).collect()
        })
    }

    /// Leads the addresses of this node's pods to the chains of their policies, which are made where they are missing.
    fn isolate(&mut self, draft: &mut Draft) {
        let mut wanted: SortedMap<IpAddr, [Vec<u32>; 2]> = SortedMap::new();
        // An address belongs to the pod that is being deleted only while no other has it.
        for is_ending in [false, true] {
            let before: Vec<IpAddr> = if is_ending { wanted.keys().copied().collect() } else { Vec::new() };
            let local = self
                .pods
                .iter()
                .filter(|(_, pod)| pod.is_local && !pod.is_gone && pod.is_ending == is_ending);
            for (_, pod) in local {
                let policies = self.isolating(pod);
                for address in pod.addresses.iter().filter(|address| !before.contains(address)) {
                    let lists = wanted.entry(address).or_default();
                    for (list, more) in lists.iter_mut().zip(&policies) {
                        list.extend(more);
                        list.sort_unstable();
                        list.dedup();
                    }
                }
            }
        }
        let mut isolated: SortedMap<IpAddr, Isolated> = SortedMap::new();
        for (address, [ingress, egress]) in wanted {
            let chains = [
                self.combination(Direction::Ingress, ingress, draft),
                self.combination(Direction::Egress, egress, draft),
            ];
            if chains != [None, None] {
                isolated.insert(address, chains);
            }
        }
        let old = std::mem::replace(&mut self.isolated, isolated);
        for (address, chains) in &old {
            let now = self.isolated.get(address).copied().unwrap_or_default();
            for (direction, (was, is)) in DIRECTIONS.into_iter().zip(chains.iter().zip(now)) {
                if let Some(number) = was {
                    if *was != is {
                        draft.remove(
                            Kind::Isolated(direction),
                            Element::Chain(*address, Chain::Pods(*number)),
                        );
                    }
                    if let Some(old) = self.combinations.iter_mut().find(|one| one.number == *number) {
                        old.users -= 1;
                    }
                }
            }
            if now == [None, None] {
                draft.remove(Kind::Own, Element::Own(*address));
            }
        }
        for (address, chains) in &self.isolated {
            let was = old.get(address).copied();
            for (direction, (is, was)) in
                DIRECTIONS.into_iter().zip(chains.iter().zip(was.unwrap_or_default()))
            {
                if let Some(number) = is.filter(|_| *is != was) {
                    draft.add(Kind::Isolated(direction), Element::Chain(*address, Chain::Pods(number)));
                }
            }
            if was.is_none() {
                draft.add(Kind::Own, Element::Own(*address));
            }
        }
    }

    /// The chain of the pods that these policies isolate, with one user more.
    fn combination(&mut self, direction: Direction, policies: Vec<u32>, draft: &mut Draft) -> Option<u32> {
        if policies.is_empty() {
            return None;
        }
        let is_it = |one: &&mut Combination| one.direction == direction && one.policies == policies;
        if let Some(known) = self.combinations.iter_mut().find(is_it) {
            known.users += 1;
            return Some(known.number);
        }
        for number in &policies {
            self.make_policy(*number, draft);
        }
        let number = self.next_number();
        let named = policies.iter().map(|policy| (*policy, self.policy_name(*policy)));
        rules::pods(number, direction, named, &mut draft.made);
        self.combinations.push(Combination { number, direction, policies, users: 1 });
        Some(number)
    }

    /// `NAMESPACE/NAME`.
    fn policy_name(&self, number: u32) -> Box<str> {
        let place = self.policies.binary_search_by_key(&number, |policy| policy.number);
        let name =
            |policy: &Policy| format!("{}/{}", self.namespaces.name(policy.namespace), policy.name).into();
        place.ok().and_then(|place| self.policies.get(place)).map(name).unwrap_or_default()
    }

    /// Makes the policy's chains and sets, unless they are there.
    fn make_policy(&mut self, number: u32, draft: &mut Draft) {
        let Ok(place) = self.policies.binary_search_by_key(&number, |policy| policy.number) else { return };
        let policy = &mut self.policies[place];
        policy.users += 1;
        if policy.users > 1 {
            return;
        }
        let (spec, sets) = (&policy.spec, &mut self.sets);
        sets.hold(spec, &mut self.number, draft);
        let (group, port) = (|key: &_| sets.group(key), |protocol, name| sets.port(protocol, name));
        for direction in DIRECTIONS {
            if spec.rules(direction).is_some() {
                rules::policy(number, direction, spec, group, port, &mut draft.made);
            }
        }
    }

    /// Deletes the chains and sets that nothing refers to any more.
    fn release(&mut self, draft: &mut Draft) {
        let Self { combinations, policies, sets, .. } = self;
        let mut gone = Vec::new();
        combinations.retain(|one| {
            if one.users == 0 {
                draft.deleted.push(Op::DeleteChain(Chain::Pods(one.number)));
                gone.extend_from_slice(&one.policies);
            }
            one.users > 0
        });
        for number in gone {
            let Ok(place) = policies.binary_search_by_key(&number, |policy| policy.number) else { continue };
            let policy = &mut policies[place];
            policy.users -= 1;
            if policy.users == 0 {
                let chains = DIRECTIONS.iter().flat_map(|of| rules::policy_chains(number, *of, &policy.spec));
                draft.deleted.extend(chains.map(Op::DeleteChain));
                sets.release(&policy.spec);
            }
        }
        sets.delete_unused(draft);
    }

    /// Forgets the policies that are gone, which no chain is made of any more.
    fn drop_policies(&mut self) {
        let Self { policies, words, namespaces, .. } = self;
        policies.retain_mut(|policy| {
            if policy.is_gone {
                namespaces.release(policy.namespace);
                for word in std::mem::take(&mut policy.words) {
                    words.release(word);
                }
            }
            !policy.is_gone
        });
    }
}
