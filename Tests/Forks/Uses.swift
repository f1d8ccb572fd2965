import CTestSupport
import Coroutine
import CoroutineNet
import Dispatch
import Glibc

/// Made, and used, before any fork.
let inherited = Channel<Int>(.bounded(4))
// Sound because one thread at a time steps it: the others wait for it.
nonisolated(unsafe) let generator = co_sequence(of: Int.self) { yield in
  for number in 1... { try yield(number) }
}

enum Forking {
  static let child: pid_t = cts_fork(Step.seconds)
}

private enum Wanted {
  /// Made while another thread waits for it.
  static let byTwo: Int = {
    var thread = pthread_t()
    pthread_create(
      &thread,
      nil,
      { _ in
        _ = byTwo
        return nil
      },
      nil
    )
    while !cts_may_fork() { sched_yield() }
    return 7
  }()
}

/// Everything that needs threads, timers or descriptors of the runtime; each is the first use of its process.
let uses = [
  Step("launch") { try co_launch { 1 }.blockingWait() == 1 },
  Step("launch on a queue") {
    let queue = DispatchQueue(label: "child")
    return try co_launch(on: queue) {
      try co_delay(.milliseconds(1))
      dispatchPrecondition(condition: .onQueue(queue))
      return true
    }
    .blockingWait()
  },
  Step("launch at once") {
    try co_launch(start: .immediate) {
      try co_delay(.milliseconds(1))
      return 2
    }
    .blockingWait() == 2
  },
  Step("launch later") { try co_launch(start: .lazy) { 3 }.blockingWait() == 3 },
  Step("many coroutines") {
    try co_launch {
      try co_scope { scope in
        let jobs = (0..<2_000).map { number in
          scope.launch {
            try co_yield()
            return number
          }
        }
        return try jobs.reduce(0) { try $0 + $1.join() }
      }
    }
    .blockingWait() == 1_999_000
  },
  Step("timers, deadlines and queues") {
    try co_launch {
      do {
        try co_timeout(.milliseconds(1)) { try co_delay(.seconds(3_600)) }
      } catch is TimeoutError {
        try co_switch(to: DispatchQueue(label: "child"))
        try co_delay(.milliseconds(1))
        return true
      }
      return false
    }
    .blockingWait()
  },
  Step("an inherited channel") {
    let sum = co_launch {
      try co_timeout(.seconds(3_600)) { try (inherited.receive() ?? 0) + (inherited.receive() ?? 0) }
    }
    _ = inherited.trySend(30)
    return try sum.blockingWait() == 42
  },
  Step("a generator, before and in coroutines") {
    guard generator.next() == 2 else { return false }
    return try co_launch { generator.next() }.blockingWait() == 3 && generator.next() == 4
  },
  Step("promises and their handlers") {
    let queue = DispatchQueue(label: "child")
    let onQueue = Promise<Int>.value(1).then(on: queue) { $0 + 1 }
    let late = Promise<Void>.after(.milliseconds(1)).then { 3 }
    let settled = Promise<Int>.pending()
    co_launch { settled.resolver.resume(4) }
    return try onQueue.blockingWait() == 2 && late.blockingWait() == 3 && settled.promise.blockingWait() == 4
  },
  Step("a promise for a block of a queue") {
    try Promise<Int>.running(on: DispatchQueue(label: "child")) { 5 }.blockingWait() == 5
  },
  Step("a promise for a Task") { try Promise<Int>.task { 6 }.blockingWait() == 6 },
  Step("a launch in a Task") {
    let done = Promise<Int>.pending()
    Task { done.resolver.resume(try await co_launch { 7 }.value) }
    return try done.promise.blockingWait() == 7
  },
  Step("a launch on the workers") { try co_launch(on: WorkerPoolExecutor.shared) { 8 }.blockingWait() == 8 },
  Step("a host") {
    let loop = Loop()
    let job = co_launch(on: HostedScheduler(loop)) {
      try co_delay(.milliseconds(1))
      return true
    }
    loop.run()
    return try job.blockingWait()
  },
  Step("a simulated world") {
    try inWorld {
      try co_delay(.seconds(3_600))
      return true
    }
  },
  Step("a timer of a promise alone") { try Promise<Void>.after(.milliseconds(1)).then { 3 }.blockingWait() == 3 },
  Step("blocking calls") { try co_launch { try co_blocking { getpid() } }.blockingWait() == getpid() },
  Step("locks and a select") {
    let mutex = FairMutex()
    let permits = FairSemaphore(1)
    return try co_launch {
      try mutex.withLock { try co_yield() }
      return try co_select {
        permits.onAcquire { true }
          .onTimeout(.seconds(3_600)) { false }
      }
    }
    .blockingWait()
  },
  Step("an actor") {
    let counter = co_actor { (mailbox: Mailbox<Reply<Int>>) in
      while let reply = try mailbox.receive() { reply(5) }
    }
    return try co_launch { try counter.ask { $0 } }.blockingWait() == 5
  },
  Step("async code") {
    try co_launch(on: DispatchQueue(label: "child")) {
      try co_await {
        try await Task.sleep(for: .milliseconds(1))
        return await Task.detached { 6 }.value
      }
    }
    .blockingWait() == 6
  },
  Step("executors") {
    let done = Promise<Int>.pending()
    let queue = CoroutineExecutor(DispatchQueue(label: "child"))
    Task(executorPreference: WorkerPoolExecutor.shared) {
      await Task(executorPreference: queue) { done.resolver.resume(7) }.value
    }
    return try done.promise.blockingWait() == 7
  },
  Step("a signal") {
    let signals = co_signals([SIGUSR1])
    let received = co_launch {
      kill(getpid(), SIGUSR1)
      return try signals.receive()
    }
    return try received.blockingWait() == SIGUSR1
  },
  Step("descriptors of others") {
    var ends: [Int32] = [-1, -1]
    guard pipe(&ends) == 0 else { return false }
    let (reading, writing) = (ends[0], ends[1])
    let waiting = co_launch { try co_untilReadable(reading) }
    co_launch {
      try co_delay(.milliseconds(1))
      write(writing, "x", 1)
    }
    try waiting.blockingWait()
    return true
  },
  Step("sockets and names") {
    try co_launch {
      guard try !SocketAddress.resolve("localhost", port: 80).isEmpty else { return false }
      let listener = try Listener.bind(.loopback(port: 0))
      let served = co_launch { try listener.accept().write([1, 2, 3]) }
      let connection = try Connection.connect(to: listener.address)
      let bytes = try connection.read(upTo: 3)
      try served.join()
      return !bytes.isEmpty
    }
    .blockingWait()
  },
  Step("a static let that two threads want at once") {
    // From the first use on.
    try co_launch { 1 }.blockingWait() == 1 && Wanted.byTwo == 7
  },
  Step("a dump") { try co_launch { CoroutineRuntime.dump() }.blockingWait().contains("live coroutine") },
  Step("the main queue") {
    co_launch(on: .main) {
      try co_delay(.milliseconds(1))
      dispatchPrecondition(condition: .onQueue(.main))
      _exit(0)
    }
    dispatchMain()
  },
  Step("co_main") {
    co_main {
      kill(getpid(), SIGTERM)
      try co_await(co_stopping)
      _exit(0)
    }
  },
]
