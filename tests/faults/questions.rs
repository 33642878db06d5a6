//! The observations during a fault.

/// A question about a function, in the family that the fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// An open connection to an applied Service is answered.
    Open,
    /// A new connection to it is answered.
    New,
    /// New connections reach the endpoint that replaced another one.
    Endpoints,
    /// The cluster IP of a new Service is answered.
    Opens,
    /// The load-balancer address of a new Service with source ranges is
    /// answered.
    Guarded,
    /// A removed Service is not answered any more.
    Closes,
    /// The health-check node port reports the number of endpoints.
    Health,
    /// `/livez` answers 200.
    Livez,
    /// Endpoints and new Services of the other family follow.
    OtherFamily,
    /// The desired state is applied after the fault.
    Repaired,
}

impl Question {
    pub const ALL: [Question; 10] = [
        Question::Open,
        Question::New,
        Question::Endpoints,
        Question::Opens,
        Question::Guarded,
        Question::Closes,
        Question::Health,
        Question::Livez,
        Question::OtherFamily,
        Question::Repaired,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Question::Open => "open connection",
            Question::New => "new connection",
            Question::Endpoints => "endpoint replaced",
            Question::Opens => "new Service",
            Question::Guarded => "new source ranges",
            Question::Closes => "removed Service",
            Question::Health => "health-check node port",
            Question::Livez => "`/livez`",
            Question::OtherFamily => "other IP family",
            Question::Repaired => "afterwards",
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Question::Open => "is answered by its endpoint, which has left the Service",
            Question::New => "to a Service that was applied before is answered",
            Question::Endpoints => "new connections reach the new endpoint",
            Question::Opens => "its cluster IP is answered",
            Question::Guarded => {
                "callers that `loadBalancerSourceRanges` of a new Service allow get an answer \
                 from its load-balancer address"
            }
            Question::Closes => "its cluster IP is not answered any more",
            Question::Health => "it says how many endpoints are on the node now",
            Question::Livez => "it answers 200",
            Question::OtherFamily => {
                "if the fault affects one family: endpoints are replaced and a new Service opens \
                 in the other one"
            }
            Question::Repaired => {
                "once the fault has passed, all of this is in the desired state, in both families"
            }
        }
    }
}
