import Dispatch
import Glibc
import Testing

@testable import Coroutine

@Suite("Looks at a queue", .timeLimit(.minutes(10)))
struct QueueLookTests {
  /// Each step is a look, in seconds: values that have left, values that are there, and what is known of the oldest.
  @Test(arguments: [
    // A value that stays gets older; a new queue of looks begins when it has gone.
    [(0, 0, 1, 0), (5, 0, 1, 5), (9, 1, 1, 0), (12, 1, 1, 3)],
    // The second value was there at the second look.
    [(0, 0, 1, 0), (5, 0, 2, 5), (7, 1, 1, 2), (9, 1, 3, 4)],
    // Empty between two looks.
    [(0, 0, 3, 0), (4, 3, 0, 0), (8, 3, 3, 0), (9, 4, 2, 1)],
    // A flow: the first value that is there now came between the looks at 2 and 4.
    [(0, 0, 100, 0), (2, 50, 100, 2), (4, 100, 100, 2), (6, 150, 100, 2)],
    // Two values were put back.
    [(0, 0, 4, 0), (3, 2, 2, 3), (5, 0, 4, 5)],
  ])
  func `tell how long the first value has been there at least`(_ steps: [(Int, Int, Int, Int)]) {
    var looks = QueueLooks()
    for (time, removed, count, oldest) in steps {
      let second: UInt64 = 1_000_000_000
      #expect(looks.look(at: UInt64(time) * second, removed: removed, count: count) == UInt64(oldest) * second)
    }
  }

  @Test func `remember little, and know the oldest value however many there are`() {
    var looks = QueueLooks()
    for time in 0..<10_000 { #expect(looks.look(at: UInt64(time), removed: 0, count: time + 1) == UInt64(time)) }
    #expect(MemoryLayout.size(ofValue: looks) <= 8)
  }

  @Test func `a ring counts what has left it, through growth, exchanges and values that are put back`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(.unbounded)
      var (sent, received) = (0, 0)
      var random = SystemRandomNumberGenerator()
      for _ in 0..<20_000 {
        switch Int.random(in: 0..<100, using: &random) {
        case 0:
          let all = channel.count > 0 ? try channel.receiveAll() : []
          received += all.count
        case 1:
          for _ in 0..<3_000 {
            try channel.send(sent)
            sent += 1
          }
        case 2..<50:
          if case .received(let value) = channel.tryReceive() {
            #expect(value == received)
            received += 1
          }
        default:
          try channel.send(sent)
          sent += 1
        }
        #expect(channel.holding.removed == received && channel.holding.count == sent - received)
      }
    }
  }
}

/// What ``CoroutineRuntime/queues(most:)`` lists; each in a process of its own, because it lists those of the process.
@Suite("Queues that hold something", .timeLimit(.minutes(10)))
struct QueueReportTests {
  @Test func `a channel is listed with its fill, its name, where it was made, and since when it holds that`() async {
    await #expect(processExitsWith: .success) {
      #expect(CoroutineRuntime.queues().isEmpty)
      let (jobs, site) = Self.makeJobs()
      let small = Channel<Int>(1)
      let waits = Channel<Int>(.rendezvous)
      for value in 0..<3 { #expect(jobs.trySend(value) == .sent) }
      #expect(small.trySend(1) == .sent)
      var queues = CoroutineRuntime.queues()
      #expect(queues.count == 1 && queues[0].kind == .channel && queues[0].name == "jobs", "\(queues)")
      #expect(queues[0].count == 3 && queues[0].limit == 16 && queues[0].oldest == .zero, "\(queues)")
      #expect(queues[0].site == site, "\(queues)")
      queues = CoroutineRuntime.queues()
      #expect(queues[0].oldest > .zero)
      while jobs.count > 0 { _ = jobs.tryReceive() }
      #expect(CoroutineRuntime.queues().isEmpty)
      #expect(jobs.trySend(4) == .sent)
      #expect(CoroutineRuntime.queues().first?.oldest == .zero)
      withExtendedLifetime((jobs, small, waits)) {}
    }
  }

  /// A channel, and where it was made; outside of the body of an exit test, all of which is on one line.
  private static func makeJobs() -> (Channel<Int>, site: String) {
    (Channel<Int>(16).named("jobs"), "CoroutineKernelTests/QueueReportTests.swift:\(#line)")
  }

  @Test func `a channel that has gone is not listed, while others are made and go`() async {
    await #expect(processExitsWith: .success) {
      let isOver = Flag()
      let makers = (0..<2).map { _ in
        co_launch {
          while !isOver.isRaised {
            let channels = (0..<50).map { _ in Channel<Int>(.unbounded) }
            for channel in channels { _ = channel.trySend(1) }
            try co_yield()
          }
        }
      }
      for _ in 0..<500 {
        for queue in CoroutineRuntime.queues(most: 1_000) where queue.kind == .channel { #expect(queue.count == 1) }
      }
      isOver.raise()
      for maker in makers { try await maker.value }
      #expect(CoroutineRuntime.queues().isEmpty)
    }
  }

  @Test func `a mailbox is listed with its actor, and the handle tells its count`() async {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      let stock = co_actor(of: Int.self, name: "stock") { mailbox in
        try gate.pass()
        try mailbox.forEach { _ in }
      }
      settle(1)
      for value in 0..<5 { #expect(stock.tryTell(value) == .sent) }
      #expect(stock.count == 5)
      let queue = CoroutineRuntime.queues()[0]
      #expect(queue.kind == .mailbox && queue.name == "stock" && queue.owner == stock.job.id && queue.limit == nil)
      let line = #/^mailbox "stock": 5 messages, made at .*QueueReportTests.swift:\d+, handled by #\d+$/#
      #expect(queue.line.contains(line))
      gate.open()
      stock.stop()
      try await stock.job.value
      #expect(stock.count == 0 && CoroutineRuntime.queues().isEmpty)
    }
  }

  @Test func `a serial queue is listed with what has not started, and the workers as one`() async {
    await #expect(processExitsWith: .success) {
      let (queue, release, isBlocked) = (taggedQueue("flooded"), DispatchSemaphore(value: 0), Flag())
      var jobs = [
        co_launch(on: queue) {
          isBlocked.raise()
          release.wait()
        }
      ]
      while !isBlocked.isRaised { sched_yield() }
      jobs += (0..<30).map { _ in co_launch(on: queue) {} }
      let listed = CoroutineRuntime.queues()
      #expect(listed.count == 1 && listed[0].kind == .scheduler && listed[0].count == 30, "\(listed)")
      #expect(listed[0].name == "coroutine.tests.flooded" && listed[0].oldest > .zero, "\(listed)")
      // Those that were launched by another thread have a time as well.
      let waiting = CoroutineRuntime.snapshot().coroutines.filter { $0.state == .notStarted }
      #expect(waiting.count == 30 && waiting.allSatisfy { $0.since > .zero })
      release.signal()
      for job in jobs { try await job.value }
      let runs = CoroutineRuntime.metrics.wakeToRun
      #expect(runs.counts.reduce(0, +) >= 1 && runs.sum > .zero)
    }
  }

  @Test func `a queue's label is as given in the value, and escaped in its line and its sample`() async {
    await #expect(processExitsWith: .success) {
      let label = "raw \"label\"\n"
      let (queue, release, isBlocked) = (DispatchQueue(label: label), DispatchSemaphore(value: 0), Flag())
      let first = co_launch(on: queue) {
        isBlocked.raise()
        release.wait()
      }
      while !isBlocked.isRaised { sched_yield() }
      let second = co_launch(on: queue) {}
      let listed = CoroutineRuntime.queues()[0]
      #expect(listed.name == label)
      #expect(listed.line.hasPrefix(#"scheduler "raw \"label\"\n": 1 coroutine has not started"#), "\(listed.line)")
      let sample = #"\#ncoroutine_queue_values{kind="scheduler",name="raw \\\"label\\\"\\n",site=""} 1\#n"#
      #expect(CoroutineRuntime.metricsText.contains(sample), "\(sample)")
      #expect(CoroutineRuntime.dump(.list).contains(#" on raw "label"\n, launched at "#))
      release.signal()
      try await first.value
      try await second.value
    }
  }

  @Test func `the fullest and those that have waited longest come before others`() async {
    await #expect(processExitsWith: .success) {
      let channels = (1...40).map { Channel<Int>(.unbounded).named("\($0)") }
      for (index, channel) in channels.enumerated() where index >= 4 { for _ in 0...index { _ = channel.trySend(1) } }
      for _ in 0..<3 { _ = CoroutineRuntime.queues() }
      for channel in channels.prefix(4) { _ = channel.trySend(1) }
      // A channel that is not used any more is not listed.
      let listed = withExtendedLifetime(channels) { CoroutineRuntime.queues(most: 16) }
      let names = Set(listed.compactMap(\.name))
      #expect(names.count == 16 && names.isSuperset(of: (33...40).map { "\($0)" }))
      #expect(names.isDisjoint(with: ["1", "2", "3", "4"]), "\(names)")
    }
  }

  @Test(arguments: [-1, Int.min, 0, 1]) func `so many as are asked for are listed, and none for a number below one`(
    _ most: Int
  ) {
    let channels = (0..<3).map { _ in Channel<Int>(.unbounded) }
    for channel in channels { for _ in 0..<9 { _ = channel.trySend(1) } }
    let listed = withExtendedLifetime(channels) { CoroutineRuntime.queues(most: most) }
    #expect(listed.count == max(0, most))
  }

  enum Receiver: CaseIterable, Codable { case receive, select, task }

  @Test(arguments: Receiver.allCases)
  func `a full channel says who has received last, and that it has ended`(_ receiver: Receiver) async {
    await #expect(processExitsWith: .success) { [receiver] in
      let queue = taggedQueue("receivers")
      let lines = Channel<Int>(2)
      EndedJobs.begin()
      let other = Channel<Int>()
      let consumer = co_launch(on: queue, name: "log writer") {
        switch receiver {
        case .receive: _ = try lines.receive()
        case .select:
          try co_select {
            lines.onReceive { _ in }
            other.onReceive { _ in }
          }
        case .task: try co_await { for try await _ in lines { break } }
        }
      }
      settle(1)
      let senders = (0..<4).map { number in co_launch(on: queue, name: "request \(number)") { try lines.send(number) } }
      settle(1)
      try await consumer.value
      let text = CoroutineRuntime.dump(.list)
      let last = receiver == .task ? "a Task" : "#\(consumer.id) \"log writer\", which ended "
      let clause = ", 2 of 2 values buffered, last receiver \(last)"
      #expect(text.contains(clause), "\(text)")
      for sender in senders { sender.cancel() }
      for sender in senders { _ = try? await sender.value }
    }
  }
}
