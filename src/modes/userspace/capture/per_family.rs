//! Capture of both families, each by its own method.

use std::{sync::Arc, time::Duration};

use net::{Family, Frontend, PerFamily};
use xtables::Engine;

use super::{
    Choice, Desired, Differing, Error, Extent, Local, Method, Outcomes, Redirect, Report, Scope,
    Scopes,
};
use crate::{kernel::probe::Kernel, log_once::LogOnce, modes::checks::Checks, node::Served};

/// Interval between checks whether another process changed our objects.
const CHECK: Duration = Duration::from_secs(1);

/// Captures packets for service addresses for our listeners.
pub struct Capture {
    families: PerFamily<FamilyCapture>,
    node_ports: Arc<Served>,
    /// When it is checked whether another process changed our objects.
    checks: Checks,
}

/// Capture of one family.
struct FamilyCapture {
    active: ActiveMethod,
    /// Whether it was reported that another process changed something, and no sync has succeeded
    /// since: the next sync then runs when it is due.
    is_reported: bool,
    logged: LogOnce,
}

/// The method by which a family is captured.
enum ActiveMethod {
    Redirect(Box<Redirect>),
    Local(Box<Local>),
}

impl ActiveMethod {
    /// Number of transactions of rules in the last sync.
    fn transactions(&self) -> u32 {
        match self {
            ActiveMethod::Redirect(redirect) => redirect.transactions(),
            ActiveMethod::Local(_) => 0,
        }
    }
}

impl Capture {
    /// Capture by the methods of `choice`, which was made for this `kernel`. Node ports answer on
    /// all of the node's addresses.
    ///
    /// # Errors
    /// When the required sockets or programs are not available.
    pub fn new(choice: Choice, kernel: &Kernel) -> Result<Self, Error> {
        let family = |family| -> Result<FamilyCapture, Error> {
            Ok(FamilyCapture {
                active: match choice.methods.get(family) {
                    Method::Redirect => {
                        ActiveMethod::Redirect(Box::new(Redirect::new(family, kernel)?))
                    }
                    Method::Local => ActiveMethod::Local(Box::new(Local::new(family, kernel)?)),
                },
                is_reported: false,
                logged: LogOnce::default(),
            })
        };
        Ok(Capture {
            families: PerFamily {
                v4: family(Family::V4)?,
                v6: family(Family::V6)?,
            },
            node_ports: Arc::new(Served::All),
            checks: Checks::new(CHECK),
        })
    }

    /// Captures next to a mode of the kernel, which serves other Services.
    pub fn next_to_kernel(mut self) -> Capture {
        for (_, family) in self.families.iter_mut() {
            if let ActiveMethod::Local(local) = &mut family.active {
                local.next_to_kernel();
            }
        }
        self
    }

    /// Must be called `before` and after a mode of the kernel in this process writes rules: they are no
    /// changes by another process.
    pub fn expect_changes(&mut self, before: bool) {
        for (_, family) in self.families.iter_mut() {
            if let ActiveMethod::Redirect(redirect) = &mut family.active {
                redirect.expect_changes(before);
            }
        }
    }

    /// Sets the addresses on which node ports are served; takes effect with the next full sync.
    pub fn serve_node_ports(&mut self, served: Arc<Served>) {
        self.node_ports = served;
    }

    /// The engine of each family's rules.
    pub fn engines(&self) -> Vec<(Family, Engine)> {
        let families = self.families.iter();
        let engines = families.filter_map(|(family, capture)| match &capture.active {
            ActiveMethod::Redirect(redirect) => Some((family, redirect.engine())),
            ActiveMethod::Local(_) => None,
        });
        engines.collect()
    }

    /// The method of each family.
    pub fn methods(&self) -> PerFamily<Method> {
        self.families.as_ref().map(|_, family| family.method())
    }

    /// Why this node does not have `family` and cannot capture it; `None` if it can.
    pub fn why_unserved(&self, family: Family) -> Option<String> {
        match self.families.get(family).active {
            ActiveMethod::Redirect(_) => None,
            ActiveMethod::Local(_) => Local::why_unavailable(family),
        }
    }

    /// Returns whether packets of `family` with our [`MARK`](super::MARK) pass.
    pub fn lets_marked_pass(&self, family: Family) -> bool {
        match &self.families.get(family).active {
            ActiveMethod::Redirect(redirect) => redirect.matches_marks(),
            ActiveMethod::Local(local) => local.matches_marks(),
        }
    }

    /// Returns whether node ports of `family` are captured at each loopback address, rather than
    /// only at those that the node has.
    pub fn redirects_loopback(&self, family: Family) -> bool {
        match &self.families.get(family).active {
            ActiveMethod::Redirect(redirect) => redirect.matches_local_addresses(),
            ActiveMethod::Local(_) => false,
        }
    }

    /// Frontends that rules or routes of an earlier process capture in `family`, each with the
    /// local port to which rules redirect; 0 if it is captured by routes.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub async fn previous_ports(&self, family: Family) -> Result<Vec<(Frontend, u16)>, Error> {
        match &self.families.get(family).active {
            ActiveMethod::Redirect(redirect) => redirect.previous_ports().await,
            // The result only decides who comes first if descriptors are scarce.
            ActiveMethod::Local(_) => {
                let captured = Local::captured(family).unwrap_or_default();
                Ok(captured.into_iter().map(|frontend| (frontend, 0)).collect())
            }
        }
    }

    /// Waits until another process changes our objects. Cancel safe.
    pub async fn externally_modified(&mut self) {
        loop {
            self.checks.due().await;
            for (family, capture) in self.families.iter_mut() {
                if !capture.is_reported && !capture.is_unmodified() {
                    capture.is_reported = true;
                    tracing::info!("{family}: another process changed what captures Services");
                    return;
                }
            }
        }
    }

    /// Makes the kernel capture the desired frontends of the families that `scopes` names. If
    /// another process changed rules, everything is compared.
    pub async fn sync(&mut self, desired: &Desired, scopes: &Scopes) -> Outcomes {
        let mut scopes = scopes.clone();
        let mut before = PerFamily::default();
        for (family, capture) in self.families.iter_mut() {
            let ActiveMethod::Redirect(redirect) = &mut capture.active else {
                continue;
            };
            *before.get_mut(family) = redirect.before();
            // A change writes whole chains, so it would hide what others changed in them.
            let is_unmodified = redirect.is_unmodified();
            if let Some(scope) = scopes.get_mut(family).as_mut().filter(|_| !is_unmodified) {
                scope.extent = Extent::Full;
            }
        }
        let served = &self.node_ports;
        let PerFamily { v4, v6 } = &mut self.families;
        let v4 = v4.sync(desired, scopes.v4.as_ref(), served);
        let v6 = v6.sync(desired, scopes.v6.as_ref(), served);
        let (v4, v6) = tokio::join!(v4, v6);
        let outcomes = PerFamily { v4, v6 };
        // nf_tables counts changes of both families together.
        let families = self.families.iter();
        let made = families
            .map(|(_, capture)| capture.active.transactions())
            .sum();
        for (family, capture) in self.families.iter_mut() {
            if matches!(outcomes.get(family), Some(Ok(_))) {
                capture.is_reported = false;
            }
            if let ActiveMethod::Redirect(redirect) = &mut capture.active {
                redirect.after(*before.get(family), made);
            }
        }
        outcomes
    }
}

impl Capture {
    /// Compares the kernel with the desired state. A difference includes its frontend if the object
    /// belongs to a single one. Changes nothing.
    pub async fn compare(&mut self, desired: &Desired) -> PerFamily<Result<Differing, Error>> {
        let served = &self.node_ports;
        let mut compared = PerFamily::each(|_| Ok(Differing::new()));
        for (family, capture) in self.families.iter_mut() {
            *compared.get_mut(family) = match &mut capture.active {
                ActiveMethod::Redirect(redirect) => redirect.differences(desired, served).await,
                ActiveMethod::Local(local) => local.differences(desired),
            };
        }
        compared
    }

    /// The objects in the kernel that capture `frontend`, in the notation of [`Capture::compare`].
    pub fn objects(&mut self, frontend: &Frontend) -> Vec<String> {
        match &mut self.families.get_mut(frontend.family).active {
            ActiveMethod::Redirect(redirect) => redirect.objects(frontend),
            ActiveMethod::Local(local) => local.objects(frontend),
        }
    }
}

impl FamilyCapture {
    fn method(&self) -> Method {
        match self.active {
            ActiveMethod::Redirect(_) => Method::Redirect,
            ActiveMethod::Local(_) => Method::Local,
        }
    }

    /// Returns false if another process changed applied objects.
    fn is_unmodified(&mut self) -> bool {
        match &mut self.active {
            ActiveMethod::Redirect(redirect) => redirect.is_unmodified(),
            // A full sync will report why the kernel cannot be queried.
            ActiveMethod::Local(local) => local.is_unmodified().unwrap_or(false),
        }
    }

    async fn sync(
        &mut self,
        desired: &Desired,
        scope: Option<&Scope>,
        served: &Served,
    ) -> Option<Result<Report, Error>> {
        let scope = scope?;
        let mut report = Report::default();
        let synced = match &mut self.active {
            ActiveMethod::Redirect(redirect) => {
                redirect.sync(desired, scope, served, &mut report).await
            }
            ActiveMethod::Local(local) => local.sync(desired, scope, &mut report),
        };
        if let Err(error) = synced {
            return Some(Err(error));
        }
        report
            .messages
            .retain(|message| self.logged.is_new(message));
        Some(Ok(report))
    }
}
