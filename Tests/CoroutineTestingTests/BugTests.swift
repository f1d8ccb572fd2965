import Coroutine
import CoroutineTesting
import Glibc
import Testing

/// A small program with a concurrency bug of a kind that the GoBench collection (GoKer) lists, and its repaired twin.
struct Bug: Sendable, CustomTestStringConvertible {
  let name: String
  let strategy: Exploration.Strategy
  /// Runs the program; with true the repaired one.
  let run: @Sendable (_ isFixed: Bool) throws -> Void
  var testDescription: String { name }

  init(_ name: String, _ strategy: Exploration.Strategy, _ run: @escaping @Sendable (Bool) throws -> Void) {
    (self.name, self.strategy, self.run) = (name, strategy, run)
  }
}

/// The time of this thread, which runs the worlds, on a processor: other programs may be using the machine.
func processorTime() -> Duration {
  var time = timespec()
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
  return .seconds(time.tv_sec) + .nanoseconds(time.tv_nsec)
}

/// What a program with a bug throws when it notices.
struct Broken: Error {
  let what: String
  init(_ what: String) { self.what = what }
}

@Suite(.timeLimit(.minutes(10)))
struct BugTests {
  @Test(arguments: blockingBugs + otherBugs)
  func `a bug is found within ten seconds, replays from its token, and its repaired twin passes`(bug: Bug) throws {
    let start = processorTime()
    let found = explore(bug.strategy) { try bug.run(false) }
    #expect(processorTime() - start < .seconds(10))
    let failure = try #require(found.failure, "\(bug.name) was not found in \(found.runs) runs")
    #expect(!(failure.error is Exploration.NondeterminismError))
    for _ in 0..<(isSanitized ? 10 : 100) {
      let again = explore(.replay(failure.token)) { try bug.run(false) }.failure
      #expect(again.map { type(of: $0.error) == type(of: failure.error) } == true)
    }
    let repaired = explore(.exhaustive()) { try bug.run(true) }
    #expect(repaired.failure == nil, "\(repaired.failure?.description ?? "")")
    #expect(repaired.isComplete)
  }

  @Test func `there are twenty of them`() { #expect(blockingBugs.count + otherBugs.count == 20) }
}

/// Launches the bodies, and joins them in order.
private func together(_ bodies: (@Sendable () throws -> Void)...) throws {
  let jobs = bodies.map { co_launch($0) }
  for job in jobs { try job.join() }
}

/// Programs that stop, or leave something behind.
let blockingBugs: [Bug] = [
  Bug("circular locks", .exhaustive()) { isFixed in
    let (from, to) = (FairMutex(), FairMutex())
    try together(
      { try from.withLock { try to.withLock {} } },
      { try (isFixed ? from : to).withLock { try (isFixed ? to : from).withLock {} } }
    )
  },
  Bug("a signal to the wrong waiter", .random()) { isFixed in
    let lock = FairMutex()
    let changed = Condition(lock)
    let (first, second) = (Cell(false), Cell(false))
    try together(
      { try lock.withLock { try changed.wait { first.value } } },
      { try lock.withLock { try changed.wait { second.value } } },
      {
        for flag in [second, first] {
          try lock.withLock {
            flag.value = true
            if isFixed { changed.broadcast() } else { changed.signal() }
          }
        }
      }
    )
  },
  Bug("a send that nobody takes after a timeout", .inOrder) { isFixed in
    let answer = Channel<Int>(isFixed ? 1 : 0)
    co_launch {
      try co_delay(.seconds(2))
      try answer.send(1)
    }
    _ = try? co_timeout(.seconds(1)) { try answer.receive() }
    try World.current?.advance(by: .seconds(2))
  },
  Bug("a stop that comes between the check and the wait", .priorities()) { isFixed in
    let work = Channel<Int>()
    let isStopped = Cell(false)
    try together(
      {
        while !isStopped.value {
          co_point()
          if try work.receive() == nil { break }
        }
      },
      {
        isStopped.value = true
        if isFixed { work.close() }
      }
    )
  },
  Bug("a select with a default where it must wait", .exhaustive()) { isFixed in
    let (done, items) = (Channel<Int>(1), Channel<Int>())
    try together(
      {
        if !isFixed {
          let isDone = try co_select {
            done.onReceive { _ in true }
            SelectCase.otherwise { false }
          }
          if isDone { return }
          _ = try items.receive()
        } else {
          try co_select {
            done.onReceive { _ in }
            items.onReceive { _ in }
          }
        }
      },
      { try done.send(1) }
    )
  },
  Bug("a leaked child", .inOrder) { isFixed in
    let requests = Channel<Int>()
    co_launch { while try requests.receive() != nil {} }
    try requests.send(1)
    if isFixed { requests.close() }
  },
  Bug("a reader that reads again while a writer waits", .exhaustive()) { isFixed in
    let lock = FairReadWriteLock()
    try together(
      {
        try lock.withReadLock {
          co_point()
          if !isFixed { try lock.withReadLock {} }
        }
      },
      { try lock.withWriteLock {} }
    )
  },
  Bug("a lock held over a send", .random()) { isFixed in
    let lock = FairMutex()
    let results = Channel<Int>()
    try together(
      {
        if isFixed { try lock.withLock {} } else { try lock.lock() }
        try results.send(1)
        if !isFixed { lock.unlock() }
      },
      {
        try lock.withLock {}
        _ = try results.receive()
      }
    )
  },
  Bug("a permit that an error keeps", .random()) { isFixed in
    let permits = FairSemaphore(1)
    let use: @Sendable () throws -> Void = {
      try permits.acquire()
      if co_fault("disk") {
        if isFixed { permits.release() }
        return
      }
      permits.release()
    }
    try together(use, use)
  },
  Bug("a producer whose consumer has gone", .inOrder) { isFixed in
    let values = Channel<Int>()
    let producer = co_launch { for number in 0..<3 { try values.send(number) } }
    _ = try values.receive()
    if isFixed { producer.cancel() }
  },
]

/// Programs that go on with a wrong result.
let otherBugs: [Bug] = [
  Bug("a double close", .exhaustive()) { isFixed in
    let (isClosed, closes) = (Cell(false), Cell(0))
    let close: @Sendable () -> Void = {
      if isClosed.value { return }
      if isFixed { isClosed.value = true }
      co_point()
      isClosed.value = true
      closes.value += 1
    }
    try together(close, close)
    if closes.value != 1 { throw Broken("closed \(closes.value) times") }
  },
  Bug("a cache stampede", .inOrder) { isFixed in
    let (cached, computations) = (Cell<Int?>(nil), Cell(0))
    let flight = SingleFlight<Int, Int>()
    let compute: @Sendable () throws -> Int = {
      computations.value += 1
      try co_delay(.milliseconds(10))
      cached.value = 1
      return 1
    }
    let get: @Sendable () throws -> Void = {
      if cached.value == nil { _ = try isFixed ? flight.run(0, compute) : compute() }
    }
    try together(get, get)
    if computations.value != 1 { throw Broken("computed \(computations.value) times") }
  },
  Bug("a use before the set-up", .random()) { isFixed in
    let configuration = Cell<String?>(nil)
    let isReady = Latch(1)
    try together(
      {
        configuration.value = "eu"
        isReady.countDown()
      },
      {
        if isFixed { try isReady.wait() }
        if configuration.value == nil { throw Broken("used too early") }
      }
    )
  },
  Bug("a wait group that is told too late", .random()) { isFixed in
    let group = WaitGroup()
    let done = Cell(0)
    if isFixed { group.add(2) }
    for _ in 0..<2 {
      co_launch {
        if !isFixed { group.add() }
        co_point()
        done.value += 1
        group.done()
      }
    }
    try group.wait()
    if done.value != 2 { throw Broken("\(done.value) of 2 done") }
  },
  Bug("an update in two critical sections", .exhaustive()) { isFixed in
    let lock = FairMutex()
    let balance = Cell(0)
    let add: @Sendable () throws -> Void = {
      if isFixed { return try lock.withLock { balance.value += 1 } }
      let seen = try lock.withLock { balance.value }
      try lock.withLock { balance.value = seen + 1 }
    }
    try together(add, add)
    if balance.value != 2 { throw Broken("an update was lost") }
  },
  Bug("a send to a closed channel", .random()) { isFixed in
    let values = Channel<Int>(2)
    let sender = co_launch {
      try values.send(1)
      try values.send(2)
    }
    if isFixed { try sender.join() }
    values.close()
    try sender.join()
  },
  Bug("a singleton made twice", .exhaustive()) { isFixed in
    let (made, instance, once) = (Cell(0), Cell<Int?>(nil), Once<Int>())
    let make: @Sendable () -> Int = {
      co_point()
      made.value += 1
      return made.value
    }
    let get: @Sendable () throws -> Void = {
      if isFixed {
        _ = try once.run(make)
      } else if instance.value == nil {
        instance.value = make()
      }
    }
    try together(get, get)
    if made.value != 1 { throw Broken("made \(made.value) times") }
  },
  Bug("an answer and a timeout at the same instant", .exhaustive()) { isFixed in
    let answers = Cell<[String]>([])
    let answer: @Sendable (String) -> Void = { text in
      if isFixed, !answers.value.isEmpty { return }
      answers.value.append(text)
    }
    try together(
      {
        try co_delay(.seconds(1))
        answer("result")
      },
      {
        try co_delay(.seconds(1))
        answer("timeout")
      }
    )
    if answers.value.count != 1 { throw Broken("answered \(answers.value)") }
  },
  Bug("an order that two workers do not keep", .random()) { isFixed in
    let input = Channel<Int>(.unbounded)
    let output = Cell<[Int]>([])
    for number in 0..<3 { try input.send(number) }
    input.close()
    let work: @Sendable () throws -> Void = {
      while let number = try input.receive() {
        co_point()
        output.value.append(number)
      }
    }
    try together(work, work)
    let result = isFixed ? output.value.sorted() : output.value
    if result != [0, 1, 2] { throw Broken("\(result)") }
  },
  Bug("a transfer that loses money when it fails", .random()) { isFixed in
    let (from, to) = (Cell(100), Cell(0))
    let lock = FairMutex()
    try lock.withLock {
      from.value -= 40
      do {
        try co_delay(.milliseconds(1))
        if co_fault("ledger.write") { throw Broken("disk") }
        to.value += 40
      } catch {
        if isFixed { from.value += 40 }
      }
    }
    if from.value + to.value != 100 { throw Broken("\(from.value) and \(to.value)") }
  },
]
