import Coroutine
import Dispatch
import Testing

@Suite("Stress: actors", .timeLimit(.minutes(10)))
struct ActorStressTests {
  enum Message: Sendable {
    case add(sender: Int, number: Int)
    case echo(Int, Reply<Int>)
    case keep(Int, Reply<Int>)
    case fail
  }

  /// Counts messages, and checks that each sender's messages arrive in order; used by the actor only.
  private struct Tally {
    var count = 0
    var last: [Int: Int] = [:]
    var isInOrder = true

    mutating func add(_ sender: Int, _ number: Int) {
      count += 1
      if number <= last[sender] ?? -1 { isInOrder = false }
      last[sender] = number
    }
  }

  private struct Report: Sendable {
    var count: Int
    var isInOrder: Bool
  }

  private enum Counting: Sendable {
    case add(sender: Int, number: Int)
    case report(Reply<Report>)
  }

  private static func counting(_ mailbox: Channel<Counting>.Capacity, on queue: DispatchQueue?) -> ActorRef<Counting> {
    co_actor(on: queue, mailbox: mailbox) { mailbox in
      var tally = Tally()
      while let message = try mailbox.receive() {
        switch message {
        case .add(let sender, let number): tally.add(sender, number)
        case .report(let reply): reply(Report(count: tally.count, isInOrder: tally.isInOrder))
        }
      }
    }
  }

  @Test func `ten thousand senders to one bounded mailbox lose nothing`() async throws {
    let stress = Stress()
    let senders = stress.crowd(10_000)
    let actor = Self.counting(.bounded(64), on: nil)
    let places = queues(2).map(Optional.some) + [nil, nil]
    let jobs = (0..<senders).map { sender in
      co_launch(on: places[sender % places.count], stack: .bytes(64 * 1_024)) {
        for number in 0..<10 { try actor.tell(.add(sender: sender, number: number)) }
      }
    }
    for job in jobs { try await job.value }
    let report = try await co_launch { try actor.ask { .report($0) } }.value
    #expect(report.count == senders * 10, "\(stress.replay)")
    #expect(report.isInOrder, "a sender's messages came out of order; \(stress.replay)")
    actor.stop()
    try await actor.job.value
  }

  /// Coroutines, which wait, and threads, which do not, send to one actor.
  ///
  /// Some coroutines are cancelled. Every accepted message is handled.
  @Test func `every accepted message is handled, whichever coroutine is cancelled`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(10) {
      let (accepted, refused, dropped, handled) = (Census(), Census(), Census(), Census())
      let drop: @Sendable (Int) -> Void = { _ in dropped.change() }
      let actor = co_actor(of: Int.self, mailbox: .bounded(4), onUndelivered: drop) { mailbox in
        while try mailbox.receive() != nil { handled.change() }
      }
      let places = queues(2).map(Optional.some) + [nil, nil]
      let jobs = (0..<40).map { index in
        co_launch(on: places[index % places.count]) {
          for number in 0..<50 {
            do {
              try actor.tell(number)
              accepted.change()
            } catch {
              refused.change()
              throw error
            }
          }
        }
      }
      let threads = co_launch {
        try co_blocking { for number in 0..<200 where actor.tryTell(number) == .sent { accepted.change() } }
      }
      try await cancelSome(of: jobs, stress.random(round))
      for job in jobs { _ = try? await job.value }
      try await threads.value
      actor.stop()
      try await actor.job.value
      #expect(handled.now == accepted.now, "\(stress.replay)")
      #expect(dropped.now == refused.now, "what a sender offered in vain goes to the hook; \(stress.replay)")
    }
  }

  /// Askers of several queues, and an actor that is ended at a random moment in a random way.
  ///
  /// It answers some at once, passes some on, and drops some. No asker waits for ever, and none gets an answer
  /// to another question.
  @Test func `every ask ends once, with its own answer, however the actor ends`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(40) {
      var random = stress.random(round)
      let (answered, refused, wrong) = (Census(), Census(), Census())
      let places = queues(2).map(Optional.some) + [nil, nil]
      let actor = co_actor(of: Message.self, on: places[round % places.count]) { mailbox in
        while let message = try mailbox.receive() {
          switch message {
          case .echo(let number, let reply):
            if number % 7 != 0 { reply(number) }
          case .keep(let number, let reply):
            reply.delegate()
            co_launch { reply(number) }
          case .fail: throw CancellationError()
          case .add: continue
          }
        }
      }
      let jobs = (0..<30).map { index in
        co_launch(on: places[index % places.count]) {
          var random = stress.random(round << 8 | index)
          for number in 1...40 {
            do {
              let timeout: Duration? = random.next() % 8 == 0 ? .microseconds(Int(random.next() % 300)) : nil
              let answer =
                number % 3 == 0
                ? try actor.ask(timeout: timeout) { .keep(number, $0) }
                : try actor.ask(timeout: timeout) { .echo(number, $0) }
              answered.change()
              if answer != number { wrong.change() }
            } catch is ActorStoppedError {
              refused.change()
            } catch is ReplyDroppedError {
              refused.change()
            } catch is TimeoutError {
              refused.change()
            }
          }
        }
      }
      let delay = Duration.microseconds(Int(random.next() % 3_000))
      try await co_launch { try co_delay(delay) }.value
      switch round % 4 {
      case 0: actor.stop()
      case 1: actor.cancel()
      case 2: _ = actor.tryTell(.fail)
      default: jobs[Int(random.next() % 30)].cancel()
      }
      for job in jobs { _ = try? await job.value }
      actor.stop()
      _ = try? await actor.job.value
      #expect(wrong.now == 0, "\(stress.replay)")
      #expect(round % 4 == 3 || answered.now + refused.now == 30 * 40, "\(stress.replay)")
    }
  }

  /// Actors that fail at random under a supervisor of a random strategy, on several queues: a message is lost only if
  /// handling it failed, and each actor is alive in the end.
  @Test func `restarts lose only the messages that failed`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(12) {
      var random = stress.random(round)
      let strategy = [RestartStrategy.oneForOne, .allForOne, .restForOne][round % 3]
      let supervisor = Supervisor(strategy, limit: RestartLimit(restarts: .max, within: .seconds(1)))
      let places = queues(2).map(Optional.some) + [nil, nil]
      let handled = (0..<6).map { _ in Census() }
      let actors = (0..<6).map { index in
        supervisor.actor(of: Message.self, on: places[index % places.count]) { mailbox in
          while let message = try mailbox.receive() {
            switch message {
            case .add: handled[index].change()
            case .fail: throw CancellationError()
            case .echo(let number, let reply), .keep(let number, let reply): reply(number)
            }
          }
        }
      }
      let each = 100
      let jobs = (0..<6).map { index in
        let failures = Set((0..<5).map { _ in Int(random.next() % UInt64(each)) })
        return co_launch(on: places[(index + 1) % places.count]) {
          for number in 0..<each {
            try actors[index].tell(.add(sender: index, number: number))
            if failures.contains(number) { try actors[index].tell(.fail) }
            if number % 10 == 0 { try co_yield() }
          }
          return try actors[index].ask { .echo(7, $0) }
        }
      }
      for (index, job) in jobs.enumerated() {
        #expect(try await job.value == 7, "\(stress.replay)")
        #expect(handled[index].now == each, "\(strategy), actor \(index); \(stress.replay)")
      }
      if round % 2 == 0 { supervisor.stop() } else { supervisor.cancel() }
      _ = try? await supervisor.job.value
      #expect(actors.map { $0.job.isFinished } == Array(repeating: true, count: 6), "\(stress.replay)")
    }
  }

  /// Monitors and links race with ends, from several queues: one notice per monitor.
  @Test func `each monitor delivers one notice, whenever the actor ends`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(20) {
      let places = queues(2).map(Optional.some) + [nil, nil]
      let workers = (0..<20).map { index in
        co_actor(of: Int.self, on: places[index % places.count]) { mailbox in while try mailbox.receive() != nil {} }
      }
      let notices = Census()
      let watchers = (0..<4).map { index in
        co_actor(of: ActorEnd?.self, on: places[index], mailbox: .dropOldest(1)) { mailbox in
          for worker in workers { mailbox.monitor(worker) { $0 } }
          var heard = 0
          while let message = try mailbox.receive() {
            guard message != nil else { continue }
            heard += 1
            notices.change()
            if heard == workers.count { return }
          }
        }
      }
      var random = stress.random(round)
      let order = workers.indices.shuffled(using: &random)
      DispatchQueue(label: "coroutine.stress.ending").async {
        for index in order { if index % 2 == 0 { workers[index].stop() } else { workers[index].cancel() } }
      }
      for _ in 0..<10 { for watcher in watchers { _ = watcher.tryTell(nil) } }
      for watcher in watchers { try await watcher.job.value }
      #expect(notices.now == workers.count * watchers.count, "\(stress.replay)")
    }
  }
}
