#if Demo
import Coroutine
import CoroutineNet
import Synchronization

/// One client of the load program.
struct LoadClient: Sendable {
  let number: Int
  let load: ChatLoad

  /// Suspends until the client has ended; its failure is in the report.
  func run() throws -> LoadReport {
    var report = LoadReport(number: number)
    // The others do not wait for one that has failed.
    let entered = Once(load.enter)
    let finished = Once(load.finish)
    defer {
      entered()
      finished()
    }
    do {
      let connection = try connect()
      defer { connection.close() }
      load.counters.connected.add(1, ordering: .relaxed)
      var lines = LoadLines(connection, timeout: load.plan.timeout)
      do {
        try enter(connection, &lines)
        entered()
        try load.waitForEntered()
        try exchange(connection, &lines, &report)
        finished()
        try load.waitForFinished()
        try leave(connection, &lines, &report)
      } catch let error as NetError {
        throw lines.lost("\(error)")
      } catch is TimeoutError {
        throw lines.lost("the server says nothing")
      }
    } catch let failure as LoadFailure {
      report.failure = failure
    }
    return report
  }

  /// Does something the first time it is called.
  private final class Once {
    private var body: (() -> Void)?
    init(_ body: @escaping () -> Void) { self.body = body }
    func callAsFunction() { body.take()?() }
  }

  private func connect() throws -> Connection {
    do {
      return try load.open()
    } catch let error as NetError {
      throw LoadFailure.notConnected(error)
    } catch is TimeoutError {
      throw LoadFailure.connectingTimedOut
    }
  }

  /// Says its name, and joins its room.
  private func enter(_ connection: Connection, _ lines: inout LoadLines) throws {
    let name = LoadMessage.name(of: number)
    let room = "load-\(load.plan.room(of: number))"
    try connection.write("/nick \(name)\n/join \(room)\n".utf8)
    while true {
      let line = try lines.nextBeforeEnd()
      if line.hasPrefix("! ") { throw LoadFailure.refused(line) }
      if line == "* \(name) has joined \(room)." { return }
    }
  }

  /// Sends all its messages, and receives those of its room until all have come, or none comes any more.
  private func exchange(_ connection: Connection, _ lines: inout LoadLines, _ report: inout LoadReport) throws {
    load.begin()
    // Unbounded: a message that comes twice makes room twice, and must not end the check.
    let window = FairSemaphore(load.plan.window, limit: .unbounded)
    let expected = load.plan.members(with: number).count * load.plan.messages
    let sent = Sent()
    // After the scope, and so after its sender.
    defer { report.sent = sent.count.load(ordering: .relaxed) }
    try co_scope { scope in
      let sender = scope.launch(name: "sender \(number)") { try send(connection, window, sent) }
      do {
        while report.check.received < expected {
          guard let message = LoadMessage(line: try lines.nextBeforeEnd()) else { continue }
          report.check.take(message.number, from: message.sender)
          load.deliver(message)
          if message.sender == number { window.release() }
        }
      } catch is TimeoutError {
        // Nothing comes any more: then nothing makes room either.
        sender.cancel()
      }
    }
    report.isChecked = true
  }

  /// Counts across a failure of the sender; atomic, because the sender may run on another thread.
  private final class Sent: Sendable {
    let count = Atomic<Int>(0)
  }

  private func send(_ connection: Connection, _ window: FairSemaphore, _ sent: Sent) throws {
    do {
      for message in 0..<load.plan.messages {
        try window.acquire()
        let now = Int64(load.time / .nanoseconds(1))
        try connection.write("\(LoadMessage(sender: number, number: message, sent: now).text)\n".utf8)
        sent.count.add(1, ordering: .relaxed)
      }
    } catch is NetError {
      // The receiver finds the end of the stream, and before it the server's reason.
    }
  }

  /// Says good-bye, and reads to the end of the stream: what still comes was sent twice, or is late.
  private func leave(_ connection: Connection, _ lines: inout LoadLines, _ report: inout LoadReport) throws {
    do {
      // The first line end is that of a message that the timeout has cut; otherwise it is an empty line.
      try co_timeout(load.plan.timeout) { try connection.write("\n/quit\n".utf8) }
      while let line = try lines.next() {
        guard let message = LoadMessage(line: line) else { continue }
        report.check.take(message.number, from: message.sender)
      }
    } catch is TimeoutError {
      throw lines.lost("the server does not close it after /quit")
    }
  }
}
#endif
