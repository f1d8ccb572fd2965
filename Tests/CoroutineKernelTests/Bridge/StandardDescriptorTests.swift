import CLinux
import CTestSupport
import Coroutine
import Glibc
import Testing

/// The library's descriptors in a process that was started with 0, 1 and 2 closed.
@Suite("Descriptors of the library", .timeLimit(.minutes(10)))
struct StandardDescriptorTests {
  /// The ways in which the library makes a descriptor.
  enum Way: CaseIterable, Codable {
    case poller, event, socket, pair, pipe, accepted

    func make() -> [Int32] {
      var ends: [Int32] = [-1, -1]
      switch self {
      case .poller: return [clinux_poller()]
      case .event: return [clinux_eventfd()]
      case .socket: return [clinux_socket(AF_INET, true)]
      case .pair: return clinux_socket_pair(&ends) == 0 ? ends : []
      case .pipe: return clinux_pipe(&ends, 4_096) == 0 ? ends : []
      case .accepted:
        var address = sockaddr_in()
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let (listener, client) = (clinux_socket(AF_INET, true), clinux_socket(AF_INET, true))
        return withUnsafeMutablePointer(to: &address) {
          $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
            address.pointee.sa_family = sa_family_t(AF_INET)
            guard bind(listener, address, length) == 0, listen(listener, 1) == 0,
              getsockname(listener, address, &length) == 0
            else { return [] }
            _ = connect(client, address, length)
            var query = pollfd(fd: listener, events: Int16(POLLIN), revents: 0)
            poll(&query, 1, -1)
            return [listener, client, clinux_accept(listener, address, &length)]
          }
        }
      }
    }
  }

  @Test(arguments: Way.allCases) func `are never 0, 1 or 2`(_ way: Way) async {
    await #expect(processExitsWith: .exitCode(7)) { [way] in
      for number in Int32(0)...2 { close(number) }
      let made = way.make()
      let isOwn = made.allSatisfy { $0 > 2 && fcntl($0, F_GETFD) == FD_CLOEXEC }
      exit(!made.isEmpty && isOwn ? 7 : 1)
    }
  }

  // A program of its own: what the threads of a test's process open meanwhile has these numbers too.
  @Test func `a process that is started without them has them from the first use on, and gives none away`() async throws
  {
    let program = folderOfTests() + "/BlockedSignals"
    let end = try await onCoroutine {
      let child = try #require(spawn("/bin/sh", "-c", "exec \"$0\" 'without 0 to 2' 0<&- 1>&- 2>&-", program))
      return try co_blocking { cts_end_of(child) }
    }
    #expect(end == 7)
  }

  @Test func `that cannot be above 2 are refused, and closed`() async {
    await #expect(processExitsWith: .exitCode(7)) {
      for number in Int32(0)...2 { close(number) }
      let descriptors = __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
      var before = rlimit()
      guard getrlimit(descriptors, &before) == 0 else { exit(2) }
      var limit = rlimit(rlim_cur: 3, rlim_max: before.rlim_max)
      guard setrlimit(descriptors, &limit) == 0 else { exit(2) }
      let isRefused = clinux_socket(AF_INET, true) == -EMFILE && clinux_poller() == -1
      // What looks for leaks at the end needs a descriptor above 2.
      setrlimit(descriptors, &before)
      exit(isRefused ? 7 : 1)
    }
  }
}
