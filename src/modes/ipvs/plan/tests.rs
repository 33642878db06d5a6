//! What single ServicePorts lead to, beside what the recordings have.
