import CTestSupport
import Coroutine
import CoroutineNet
import Glibc

/// Binds a listener, forks servers that each answer two clients from it, and asks all of them.
///
/// The listener is made before any use of the runtime, and belongs to the process that has bound it.
func serve(_ address: SocketAddress, path: String?) throws -> Bool {
  let listener = try Listener.bind(address)
  var servers: [Int32] = []
  while servers.count < 3, servers.last != 0 { servers.append(cts_fork_with_sockets(Step.seconds)) }
  if servers.last == 0 {
    let isServed = Step("a server of several") {
      try co_launch {
        for _ in 0..<2 {
          let connection = try listener.accept()
          try connection.write(Array("\(getpid())".utf8))
          connection.close()
        }
        listener.close()
        return true
      }
      .blockingWait()
    }
    .run()
    _exit(isServed ? 0 : 1)
  }
  let clients = Step("six clients") { [servers] in
    let answers = try co_launch {
      try (0..<6).map { _ in
        let connection = try Connection.connect(to: listener.address)
        let bytes = try connection.read(upTo: 100)
        return Int32(String(decoding: bytes, as: UTF8.self))
      }
    }
    .blockingWait()
    return servers.allSatisfy { server in answers.count { $0 == server } == 2 }
  }
  guard clients.runInChild(), servers.allSatisfy({ cts_end_of($0) == 0 }) else { return false }
  // The children have closed their copies; the file is the parent's.
  if let path, access(path, F_OK) != 0 { return false }
  listener.close()
  return path.map { access($0, F_OK) != 0 } ?? true
}

/// Forks twice, as a daemon does, and lets the second child work when the first one has ended.
func becomeDaemon() -> Bool {
  var ends: [Int32] = [-1, -1]
  guard pipe(&ends) == 0 else { return false }
  let first = cts_fork(Step.seconds)
  if first == 0 {
    setsid()
    let parent = getpid()
    let second = cts_fork(Step.seconds)
    if second != 0 { _exit(second > 0 ? 0 : 1) }
    let works = Step("a daemon") {
      try co_launch {
        // Until the process that has forked this one has ended.
        while getppid() == parent { try co_delay(.milliseconds(1)) }
        return true
      }
      .blockingWait()
    }
    .run()
    write(ends[1], works ? "y" : "n", 1)
    _exit(0)
  }
  close(ends[1])
  var answer: UInt8 = 0
  return cts_end_of(first) == 0 && read(ends[0], &answer, 1) == 1 && answer == UInt8(ascii: "y")
}
