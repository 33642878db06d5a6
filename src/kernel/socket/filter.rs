//! Classic BPF filters on TCP listeners: a caller that is not allowed gets no answer, because its
//! packets are dropped before the kernel answers its SYN (`sk_filter` in `tcp_v4_rcv`,
//! net/ipv4/tcp_ipv4.c).

use std::{io, net::IpAddr, os::fd::AsFd};

use ipnet::IpNet;
use net::Family;
use nix::libc;
use socket2::{SockFilter, SockRef};

/// linux/filter.h: offsets from here are those of the network header.
const HEADER: u32 = libc::SKF_NET_OFF.cast_unsigned();

/// linux/bpf_common.h: maximum number of instructions of a filter.
const MOST: usize = 4096;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const EQUAL_X: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_X;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const TO_X: u32 = libc::BPF_MISC | libc::BPF_TAX;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// One instruction: code, jump offsets if the condition holds and if not, and operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction(u32, u8, u8, u32);

/// The callers that a listener admits; empty: everyone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(Vec<Instruction>);

/// A test that a caller may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// The caller's address is in a network.
    Within(IpNet),
    /// The caller calls its own address, as the node does.
    Itself,
}

impl Filter {
    /// Builds a filter that admits a caller who passes a test of each of the `sections`.
    pub fn new(family: Family, sections: &[Vec<Test>]) -> Filter {
        let mut program = Vec::new();
        for tests in sections {
            let tests = tests.iter().filter(|test| match test {
                Test::Within(net) => Family::of(&net.addr()) == family,
                Test::Itself => true,
            });
            let tests: Vec<_> = tests.map(|test| instructions(family, *test)).collect();
            // After the last test, a caller that passed none is dropped.
            let mut rest: usize = tests.iter().map(|test| test.len() + 1).sum::<usize>() + 1;
            for test in tests {
                rest -= test.len() + 1;
                program.extend(test);
                program.push(Instruction(JUMP, 0, 0, u32::try_from(rest).unwrap_or(0)));
            }
            program.push(Instruction(RETURN, 0, 0, 0));
        }
        if !program.is_empty() {
            program.push(Instruction(RETURN, 0, 0, u32::MAX));
        }
        Filter(program)
    }

    /// Returns whether it admits everyone.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces the filter of a socket, without a gap. If the new one cannot be attached, the
    /// socket has none, which admits everyone.
    ///
    /// # Errors
    /// When it is too long, or takes more memory than `net.core.optmem_max`.
    pub fn attach(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        let detach = || match socket.detach_filter() {
            // There was no filter.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done,
        };
        if self.is_empty() {
            return detach();
        }
        if self.0.len() > MOST {
            detach()?;
            return Err(io::Error::other(format!(
                "it would take {} instructions, more than {MOST}",
                self.0.len()
            )));
        }
        let program = self.0.iter();
        // Codes are 16 bits wide (linux/filter.h).
        let program: Vec<_> = program
            .map(|Instruction(code, yes, no, k)| SockFilter::new(*code as u16, *yes, *no, *k))
            .collect();
        // The old filter applies until the new one has replaced it.
        socket.attach_filter(&program).or_else(|_| {
            detach()?;
            socket.attach_filter(&program)
        })
    }
}

/// Returns instructions that fall through if `test` holds, and skip the instruction after them if
/// not.
fn instructions(family: Family, test: Test) -> Vec<Instruction> {
    // RFC 791 section 3.1, RFC 8200 section 3.
    let (source, destination, words) = match family {
        Family::V4 => (HEADER + 12, HEADER + 16, 1),
        Family::V6 => (HEADER + 8, HEADER + 24, 4),
    };
    let mut steps = Vec::new();
    match test {
        Test::Itself => {
            for word in 0..words {
                steps.push(Instruction(LOAD, 0, 0, destination + 4 * word));
                steps.push(Instruction(TO_X, 0, 0, 0));
                steps.push(Instruction(LOAD, 0, 0, source + 4 * word));
                steps.push(Instruction(EQUAL_X, 0, 0, 0));
            }
        }
        Test::Within(net) => {
            let bits = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
                IpAddr::V6(ip) => ip.to_bits(),
            };
            let (network, mask) = (bits(net.network()), bits(net.netmask()));
            for word in 0..words {
                // The word's own 32 bits.
                let of = |bits: u128| (bits >> (96 - 32 * word)) as u32;
                if of(mask) == 0 {
                    break;
                }
                steps.push(Instruction(LOAD, 0, 0, source + 4 * word));
                if of(mask) != u32::MAX {
                    steps.push(Instruction(AND, 0, 0, of(mask)));
                }
                steps.push(Instruction(EQUAL, 0, 0, of(network)));
            }
        }
    }
    // Each comparison that fails skips the jump after the test.
    let all = steps.len();
    for (at, step) in steps.iter_mut().enumerate() {
        if [EQUAL, EQUAL_X].contains(&step.0) {
            step.2 = u8::try_from(all - at).unwrap_or(u8::MAX);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::{
        net::{SocketAddr, TcpStream},
        time::Duration,
    };

    use testing::skip;

    use super::*;
    use crate::kernel::socket::listening::{self, Bind};

    /// Returns whether this user may filter packets, as most kernels allow and hardened ones do
    /// not; if not, the test is skipped.
    fn filters_can_be_attached() -> bool {
        let socket = listening::tcp(Bind::of_node("127.0.0.1:0".parse().unwrap())).unwrap();
        match Filter::new(Family::V4, &[within(&[])]).attach(&socket) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                skip("this kernel lets only root filter packets");
                false
            }
            attached => attached.map(|()| true).unwrap(),
        }
    }

    fn within(nets: &[&str]) -> Vec<Test> {
        let nets = nets.iter().map(|net| net.parse().unwrap());
        nets.map(Test::Within).collect()
    }

    /// Returns whether a listener with a filter answers a caller from loopback.
    fn answers(any: &str, sections: &[Vec<Test>]) -> bool {
        let address: SocketAddr = any.parse().unwrap();
        let family = Family::of(&address.ip());
        let socket = listening::tcp(Bind::of_node(address)).unwrap();
        Filter::new(family, sections).attach(&socket).unwrap();
        let listener = listening::start(socket).unwrap();
        let to = listener.local_addr().unwrap();
        match TcpStream::connect_timeout(&to, Duration::from_millis(100)) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn who_may_not_call_gets_no_answer() {
        if !filters_can_be_attached() {
            return;
        }
        let (v4, v6) = ("127.0.0.1:0", "[::1]:0");
        for (any, sections, answered) in [
            (v4, vec![], true),
            (v4, vec![within(&[])], false),
            (v4, vec![within(&["127.0.0.0/8"])], true),
            (v4, vec![within(&["127.0.0.1/32"])], true),
            (v4, vec![within(&["127.0.0.2/32"])], false),
            (
                v4,
                vec![within(&["10.0.0.0/8", "127.0.0.1/32", "11.0.0.0/8"])],
                true,
            ),
            (v4, vec![within(&["0.0.0.0/0"])], true),
            (v4, vec![within(&["::/0"])], false),
            (v4, vec![vec![Test::Itself]], true),
            (
                v4,
                vec![within(&["127.0.0.0/8"]), within(&["10.0.0.0/8"])],
                false,
            ),
            (
                v4,
                vec![within(&["10.0.0.0/8"]), within(&["127.0.0.0/8"])],
                false,
            ),
            (
                v4,
                vec![within(&["127.0.0.0/9"]), within(&["127.0.0.0/8"])],
                true,
            ),
            (v6, vec![within(&["::1/128"])], true),
            (v6, vec![within(&["::/96"])], true),
            (v6, vec![within(&["::2/128"])], false),
            (v6, vec![within(&["fd00::/64"])], false),
            (v6, vec![within(&["fd00::/64", "::/100"])], true),
            (v6, vec![within(&["0.0.0.0/0"])], false),
            (v6, vec![vec![Test::Itself]], true),
        ] {
            assert_eq!(answers(any, &sections), answered, "{any} {sections:?}");
        }
    }

    #[test]
    fn a_filter_is_replaced_and_one_that_does_not_fit_is_none() {
        if !filters_can_be_attached() {
            return;
        }
        let socket = listening::tcp(Bind::of_node("127.0.0.1:0".parse().unwrap())).unwrap();
        let filter = |nets: &[&str]| Filter::new(Family::V4, &[within(nets)]);
        filter(&["10.0.0.0/8"]).attach(&socket).unwrap();
        let listener = listening::start(socket).unwrap();
        let to = listener.local_addr().unwrap();
        let connects = || TcpStream::connect_timeout(&to, Duration::from_millis(100)).is_ok();
        assert!(!connects());
        filter(&["127.0.0.0/8"]).attach(&listener).unwrap();
        assert!(connects());
        filter(&["10.0.0.0/8"]).attach(&listener).unwrap();
        assert!(!connects());
        let many: Vec<_> = (0..MOST).map(|_| "10.0.0.0/8").collect();
        let error = filter(&many).attach(&listener).unwrap_err();
        assert!(error.to_string().contains("instructions"), "{error}");
        assert!(connects());
        Filter::default().attach(&listener).unwrap();
        assert!(connects());
    }
}
