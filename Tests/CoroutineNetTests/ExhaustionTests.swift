import CTestSupport
import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// What needs a process of its own.
@Suite("Sockets in their own process", .timeLimit(.minutes(10)))
struct ExhaustionTests {
  @Test func `without descriptors a server waits, tells once, and accepts again`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        try warmUpWithTimers()
        let told = Locked<[String]>([])
        var options = Server.Options()
        options.drain = .zero
        options.onError = { error, address in told.withLock { $0.append("\(error)") } }
        let bound = Promise<SocketAddress>()
        let server = co_launch {
          try Server.run(.loopback(port: 0), options: options, onListening: { bound.fulfill($0) }) { connection in
            while try !connection.read(upTo: 10).isEmpty {}
          }
        }
        let address = try co_await(bound)

        let number = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        // No number is below this limit. Taking all descriptors would not do: another thread, the watchdog's say, may
        // have a file open for a moment, whose number is free again afterwards.
        let usual = cts_limit_descriptors(0)
        let status = address.withSystem { Glibc.connect(number, $0.assumingMemoryBound(to: sockaddr.self), $1) }
        #expect(status == 0)
        #expect(code { try Connection.connect(to: address) } == EMFILE)
        try until { !told.current.isEmpty }
        let began = clock()
        try co_delay(.seconds(2))
        // It does not spin: two seconds have cost little processor time, whatever else the process has done.
        #expect(Double(clock() - began) / Double(CLOCKS_PER_SEC) < 0.5)
        #expect(told.current.count == 1)
        #expect(told.current[0].contains("RLIMIT_NOFILE"))
        // Descriptors are free again: the connection that waited is served.
        _ = cts_limit_descriptors(usual)
        let client = try Connection.adopting(number)
        try client.shutdownWrite()
        #expect(try co_timeout(.seconds(60)) { try client.read(upTo: 1) }.isEmpty)
        server.cancel()
        try server.join()
      }
    }
  }

  @Test(arguments: ["localhost", "no-such-name.invalid"])
  func `a lookup without descriptors says so, and not that there is no such name`(_ name: String) async {
    await #expect(processExitsWith: .success) { [name = name as String] in
      await inCoroutine {
        try warmUpWithTimers()
        let usual = cts_limit_descriptors(0)
        let failure = netError { try SocketAddress.resolve(name, port: 1) }
        _ = cts_limit_descriptors(usual)
        // The C library may know of "localhost" without a file.
        if name == "localhost", failure == nil { return }
        #expect(failure?.code == EMFILE)
        #expect(failure?.description.contains("RLIMIT_NOFILE") == true, "\(String(describing: failure))")
      }
    }
  }

  @Test func `the first wait without descriptors is an error, and later ones work`() async {
    await #expect(processExitsWith: .success) {
      // No limit of the test ends this process.
      alarm(300)
      await inCoroutine {
        let (one, other) = try Connection.pair()
        try untilTimersWork()
        let free = cts_next_descriptor()
        let usual = cts_limit_descriptors(UInt(free))
        // None is left, or only the first of the two that a poller has.
        for left in 0...1 {
          _ = cts_limit_descriptors(UInt(free) + UInt(left))
          for _ in 0..<10 { #expect(code { try one.read(upTo: 1) } == EMFILE) }
          var stillFree = dup(0)
          if left == 1, stillFree < 0 {
            // The watchdog may have a file open for a moment.
            try? until {
              stillFree = dup(0)
              return stillFree >= 0
            }
          }
          #expect(stillFree == (left == 0 ? -1 : free))
          if stillFree >= 0 { close(stillFree) }
        }
        _ = cts_limit_descriptors(usual)
        let reader = co_launch { try one.read(upTo: 1) }
        try one.untilAwaited(.reading)
        try other.write([1])
        #expect(try reader.join() == [1])
      }
    }
  }

  @Test func `the last descriptors are for the worker whose coroutine waits, and the others get theirs later`() async {
    await #expect(processExitsWith: .success) {
      // A pool lives for ever, as the shared one does.
      let pool = Unmanaged.passRetained(WorkerPool(count: 3, label: "coroutine.tests.last")).takeUnretainedValue()
      let usual = cts_limit_descriptors(UInt(cts_next_descriptor()) + 50)
      var taken: [Int32] = []
      while case let number = dup(0), number >= 0 { taken.append(number) }
      // Room for one poller, which has two descriptors.
      for number in taken.suffix(2) { close(number) }
      let own = pool.workers[2].pollerOfWorker()
      #expect(own != nil)
      #expect(pool.workers.map(\.hasPoller) == [false, false, true])
      #expect(pool.workers[0].pollerOfWorker() == nil)
      _ = cts_limit_descriptors(usual)
      #expect(pool.workers[0].pollerOfWorker() != nil)
      #expect(pool.workers.map(\.hasPoller) == [true, true, true])
      #expect(pool.workers[2].pollerOfWorker() === own)
    }
  }

  @Test func `a forked child that closes its copies takes nothing from its parent`() async {
    await #expect(processExitsWith: .success) {
      // On a queue of its own: while a shared worker is busy, the watchdog's thread wakes every two milliseconds.
      try await co_launch(on: DispatchQueue(label: "forks")) {
        let (one, other) = try Connection.pair()
        let path = freshPath("fork")
        let listener = try Listener.bind(.unix(path))
        let reader = co_launch { try one.read(upTo: 1) }
        let acceptor = co_launch { try listener.accept() }
        try one.untilAwaited(.reading)
        try until { listener.socket.isAwaited(.reading) }
        Child.inherited.withLock { $0 = (one, listener) }
        // This test is about the locks of Coroutine, and not about those that other code may hold at a fork.
        while !cts_may_fork() { sched_yield() }
        let answer = cts_in_child_with_sockets(
          30,
          { _ in
            guard let (connection, listener) = Child.inherited.withLock({ $0 }) else { return 1 }
            connection.close()
            listener.close()
            if connection.withUnsafeDescriptor({ $0 }) != -1 { return 2 }
            _ = try? connection.read(upTo: 1)
            return 3
          },
          nil
        )
        // The wait has ended the child, and not the alarm.
        #expect(answer < 0 && answer != -SIGALRM && answer != -1_000)
        // The parent's waits go on, and its socket's file is there.
        try other.write([9])
        #expect(try co_timeout(.seconds(60)) { try reader.join() } == [9])
        #expect(access(path, F_OK) == 0)
        let client = try Connection.connect(to: listener.address)
        _ = try co_timeout(.seconds(60)) { try acceptor.join() }
        withExtendedLifetime(client) {}
      }
      .value
    }
  }

  @Test func `a server lives through resets, half-closes and silent peers`() async {
    await #expect(processExitsWith: .success) {
      let run = Run()
      await inCoroutine {
        var options = Server.Options()
        options.onError = { _, _ in }
        options.drain = .milliseconds(10)
        try warmUpWithTimers()
        let server = try ServerTests.Running(options: options)
        let before = openDescriptors()
        try co_scope { scope in
          for part in 0..<run.rounds(300) {
            scope.launch {
              var random = run.random(part)
              let client = try Connection.connect(to: server.address)
              switch Int.random(in: 0..<6, using: &random) {
              case 0: client.reset()
              case 1:
                try client.write([UInt8](repeating: 1, count: 100_000))
                client.reset()
              case 2: try client.shutdownWrite()
              case 4:
                // It says nothing, and gets nothing.
                #expect(throws: TimeoutError.self) {
                  try co_timeout(.milliseconds(5)) { try client.read(upTo: 1) }
                }
                client.close()
              case 3:
                try client.write([1, 2, 3])
                client.close()
              default:
                let text = (0..<50_000).map { _ in UInt8.random(in: 0...255, using: &random) }
                let reader = co_launch { try client.readAll() }
                for start in stride(from: 0, to: text.count, by: 7_000) {
                  try client.write(text[start..<min(text.count, start + 7_000)])
                }
                try client.shutdownWrite()
                #expect(try reader.join() == text, "\(run.replay)")
              }
            }
          }
        }
        try until { openDescriptors() <= before }
        try server.stop()
      }
    }
  }

  @Test func `a handler has the stack that the options name`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        var options = Server.Options()
        options.stack = .bytes(16 << 20)
        // The standard stack would overflow.
        let server = try ServerTests.Running(options: options) { connection in
          try connection.write([UInt8(recurse(2_000) / 10)])
        }
        #expect(try Connection.connect(to: server.address).readAll() == [200])
        try server.stop()
      }
    }
  }

  @Test func `a connection whose handler gets no stack is closed, and the hook has the error`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        let errors = Locked<[String]>([])
        CoroutineRuntime.unhandledErrorHandler = { unhandled in errors.withLock { $0.append("\(unhandled.error)") } }
        var options = Server.Options()
        options.stack = .bytes(1 << 40)
        // A connection that kept its place would shut the second client out.
        options.maxConnections = 1
        let server = try ServerTests.Running(options: options) { _ in }
        for count in 1...2 {
          let client = try Connection.connect(to: server.address)
          #expect(try co_timeout(.seconds(60)) { try client.readAll() }.isEmpty)
          try until { errors.current.count == count }
        }
        #expect(errors.current.allSatisfy { $0 == "\(CoroutineError.stackTooLarge(1 << 40))" })
        try server.stop()
      }
    }
  }

  @Test func `a thousand connections at once are served, and leave nothing`() async {
    await #expect(processExitsWith: .success) {
      await inCoroutine {
        try warmUpWithTimers()
        let before = openDescriptors()
        let server = try ServerTests.Running(options: .init())
        do {
          let clients = try (0..<1_000).map { _ in try Connection.connect(to: server.address) }
          for round in UInt8(0)..<3 {
            for client in clients { try client.write([round]) }
            for client in clients { #expect(try client.read(upTo: 2) == [round]) }
          }
        }
        try server.stop()
        try until { openDescriptors() <= before }
      }
    }
  }

  @Test func `opening and closing leaves no descriptor and no record`() async {
    await #expect(processExitsWith: .success) {
      let run = Run()
      await inCoroutine {
        try warmUpWithTimers()
        let before = openDescriptors()
        for _ in 0..<run.rounds(2_000) {
          let pair = try TCPPair()
          try pair.client.write([1])
          #expect(try pair.server.read(upTo: 5) == [1])
          let reader = co_launch { try? pair.server.read(upTo: 5) }
          if Bool.random() { try pair.server.untilAwaited(.reading) }
          pair.server.close()
          _ = try reader.join()
        }
        try until { openDescriptors() <= before }
      }
    }
  }
}

/// Recurses with a kilobyte for each level, and counts the levels while returning.
@inline(never)
private func recurse(_ levels: Int) -> Int {
  if levels == 0 { return 0 }
  return withUnsafeTemporaryAllocation(byteCount: 1_000, alignment: 8) { room in
    room.initializeMemory(as: UInt8.self, repeating: 1)
    let below = recurse(levels - 1)
    return below + Int(room[999])
  }
}

private enum Child {
  static let inherited = Locked<(Connection, Listener)?>(nil)
}
