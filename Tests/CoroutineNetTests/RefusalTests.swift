import CCoroutine
import CTestSupport
import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// What the system or other code refuses: each in a process of its own, which it changes for ever.
@Suite("Refusals in their own process", .timeLimit(.minutes(10)))
struct RefusalTests {
  @Test func `a server whose accepting is always refused tells it once, pauses, and can be stopped`() async {
    await #expect(processExitsWith: .success) {
      // A call that is repeated for ever keeps a worker: the process must end nevertheless.
      alarm(100)
      await inCoroutine {
        let told = Locked<[Int32?]>([])
        var options = Server.Options()
        options.onError = { error, _ in told.withLock { $0.append((error as? NetError)?.code) } }
        let server = try ServerTests.Running(options: options)
        let listener = try Listener.bind(.loopback(port: 0))
        // Kernels without filters refuse nothing.
        guard cts_refuse_accept(EPERM) == 0 else { return }
        let client = try Connection.connect(to: server.address)
        try until { !told.current.isEmpty }
        try co_delay(.milliseconds(50))
        #expect(told.current == [EPERM])
        let other = try Connection.connect(to: listener.address)
        #expect(code { try listener.accept() } == EPERM)
        try server.stop()
        withExtendedLifetime((client, other)) {}
      }
    }
  }

  @Test func `a port or a path that this user may not have is EACCES, with advice`() async {
    await #expect(processExitsWith: .success) {
      let folder = freshPath("folder")
      mkdir(folder, 0o500)
      defer { rmdir(folder) }
      if geteuid() == 0 { try #require(setuid(65_534) == 0) }
      #expect(code { try Listener.bind(.unix("\(folder)/socket")) } == EACCES)
      // A container may allow every port.
      guard firstUnprivilegedPort() > 1 else { return }
      let error = netError { try Listener.bind(.loopback(port: 1)) }
      #expect(error?.code == EACCES)
      #expect(error.map { "\($0)" }?.contains("CAP_NET_BIND_SERVICE") == true)
      #expect(code { try DatagramSocket.bind(.loopback(port: 1)) } == EACCES)
    }
  }

  @Test func `a descriptor that other code has closed is EBADF, and other connections go on`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        try warmUp()
        // The watchdog has a file open for a moment now and then. It gets the lowest free number, which must not be a
        // victim's.
        let lower = (0..<8).map { _ in dup(0) }
        let (good, peer) = try Connection.pair()
        let pairs = try (0..<3).map { _ in try Connection.pair() }
        let listener = try Listener.bind(.unix("@co-net-foreign-\(getpid())"))
        // A descriptor that is watched, and awaited.
        let waiting = co_launch { code { try pairs[2].0.read(upTo: 1) } }
        try pairs[2].0.untilAwaited(.reading)
        for number in lower { _ = Glibc.close(number) }
        for (victim, _) in pairs { victim.withUnsafeDescriptor { _ = Glibc.close($0) } }
        _ = Glibc.close(listener.socket.number)
        #expect(code { try pairs[0].0.read(upTo: 1) } == EBADF)
        #expect(code { try pairs[0].0.write([1]) } == EBADF)
        #expect(code { try pairs[1].0.write([[1], [2]]) } == EBADF)
        #expect(code { try listener.accept() } == EBADF)
        #expect(code { try co_select { pairs[1].0.onReadable {} } } == EBADF)
        // The kernel has forgotten the descriptor, so no event comes. A close of ours wakes the coroutine.
        pairs[2].0.close()
        #expect(try waiting.join() == 0)
        for round in UInt8(0)..<10 {
          let reader = co_launch { try peer.read(upTo: 1) }
          try peer.untilAwaited(.reading)
          try good.write([round])
          #expect(try reader.join() == [round])
        }
        // What closes the numbers once more at the end must not close those of others.
        withExtendedLifetime((pairs, listener)) { _exit(0) }
      }
    }
  }

  @Test func `a select whose descriptors the system does not watch throws the error`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        let (one, other) = try Connection.pair()
        let listener = try Listener.bind(.unix("@co-net-unwatched-\(getpid())"))
        // Dispatch ends a process in which it gets no descriptor.
        try untilTimersWork()
        let usual = cts_limit_descriptors(0)
        for _ in 0..<3 {
          #expect(code { try co_select { one.onReadable {} } } == EMFILE)
          #expect(code { try co_select { listener.onAccept { _ in } } } == EMFILE)
        }
        _ = cts_limit_descriptors(usual)
        try other.write([1])
        try co_select { one.onReadable {} }
      }
    }
  }

  @Test func `a handler that overflows its stack ends the process, with a report that names it`() async {
    let sanitizers = CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue
    let end: ExitTest.Condition = cco_compiled_sanitizers() & sanitizers != 0 ? .failure : .signal(SIGSEGV)
    let death = await #expect(processExitsWith: end, observing: [\.standardErrorContent]) {
      await inCoroutine {
        var options = Server.Options()
        options.stack = .bytes(64 << 10)
        let server = try ServerTests.Running(options: options) { try $0.write([UInt8(descend(1 << 40) & 1)]) }
        _ = try Connection.connect(to: server.address).readAll()
      }
    }
    let words = String(decoding: death?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains(/coroutine "connection" \(id \d+\) overflowed its stack of 64 KiB/), "\(words)")
  }
}

/// The first port that every user may have.
private func firstUnprivilegedPort() -> Int {
  guard let file = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "r") else { return 1_024 }
  defer { fclose(file) }
  var line = [CChar](repeating: 0, count: 32)
  return fgets(&line, 32, file) == nil ? 1_024 : atol(line)
}

/// An endless recursion that the compiler cannot recognise; each frame uses some memory.
@inline(never)
private func descend(_ depth: Int) -> Int {
  withUnsafeTemporaryAllocation(of: Int.self, capacity: 16) { memory in
    memory.initialize(repeating: depth)
    return depth == 0 ? memory[7] : descend(depth - 1) &+ memory[depth & 15]
  }
}
