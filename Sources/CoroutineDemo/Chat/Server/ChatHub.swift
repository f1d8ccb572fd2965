#if Demo
import Coroutine

/// What the connections tell the hub.
enum ChatEvent: Sendable {
  case entered(Int, Outbox)
  case line(Int, String)
  case longLine(Int)
  /// The session ends, for this reason, after everything that the client has said.
  case ended(Int, ChatEnding)
  /// The server stops.
  case closing
}

/// The hall as an actor: one coroutine that handles what the clients do, one event after the other.
///
/// So everybody in a room gets the same messages in the same order, without a lock. The hub never waits for a client:
/// it puts lines into outboxes.
///
/// Invariants:
///   - A guest of the hall has an open outbox in `outboxes`, but for the guests that `perform` has found too slow: it
///     closes their outboxes at once, and takes them out of the hall before it returns.
///   - Only the hub closes outboxes, each once: it removes it from `outboxes` first. So a client gets every line up to
///     a certain one, and none after it.
///   - A round of `perform` puts at most one line into an outbox for each `tell`. The hub yields before more than half
///     a backlog of them. So a client whose writer has run since then has room, however much happens at once.
struct ChatHub {
  /// How many events may wait; then the clients with more to say wait.
  private static let mailbox = 1_024
  private let backlog: Int
  private var hall: ChatHall
  private var outboxes: [Int: Outbox] = [:]
  /// How many lines an outbox may have got since the hub has last yielded.
  private var linesSinceYield = 0
  /// What is counted is told at the end.
  private(set) var tally = ChatTally()

  static func launch(_ options: ChatOptions, tally: Promise<ChatTally>) -> ActorRef<ChatEvent> {
    co_actor(name: "hub", mailbox: .bounded(mailbox)) { mailbox in
      var hub = ChatHub(options)
      defer { tally.fulfill(hub.tally) }
      while let event = try mailbox.receive() { hub.handle(event) }
    }
  }

  private init(_ options: ChatOptions) {
    backlog = options.backlog
    hall = ChatHall(limit: options.limit, longestLine: options.longestLine)
  }

  private mutating func handle(_ event: ChatEvent) {
    switch event {
    case .entered(let id, let outbox):
      outboxes[id] = outbox
      perform(hall.enter(id))
      if outboxes[id] != nil { tally.clients += 1 }
      tally.mostAtOnce = max(tally.mostAtOnce, hall.count)
    case .line(let id, let line): perform(hall.receive(line, from: id))
    case .longLine(let id): perform(hall.refuseLongLine(of: id))
    case .ended(let id, let ending): perform(hall.leave([id], ending))
    case .closing: perform(hall.close())
    }
  }

  /// Performs the effects, then sends the clients away that were too slow for them.
  ///
  /// The others are told, which may be one line too much for some of them in turn. Each round takes a guest out of the
  /// hall, so there is a last round. A loop, because a recursion would be as deep as there are rounds.
  private mutating func perform(_ effects: [ChatHall.Effect]) {
    var effects = effects
    while !effects.isEmpty {
      var slow: [Int] = []
      for effect in effects {
        switch effect {
        case .tell(let ids, let text):
          letWritersRun()
          let line = Array("\(text)\n".utf8)
          for id in ids where !put(line, for: id) { slow.append(id) }
        case .end(let id, let ending): outboxes.removeValue(forKey: id)?.close(ending)
        }
      }
      effects = hall.leave(slow, .tooSlow(backlog: backlog))
    }
  }

  /// Returns false if there was no room for the line: the outbox is closed then.
  private mutating func put(_ line: [UInt8], for id: Int) -> Bool {
    // A client that was sent away by an earlier effect has no outbox any more.
    guard let outbox = outboxes[id] else { return true }
    if outbox.trySend(line) {
      tally.lines += 1
      return true
    }
    outboxes[id] = nil
    outbox.close(.tooSlow(backlog: backlog))
    tally.tooSlow += 1
    return false
  }

  private mutating func letWritersRun() {
    if linesSinceYield >= max(1, backlog / 2) {
      linesSinceYield = 0
      // Cancelled, the hub only has to end.
      try? co_yield()
    }
    linesSinceYield += 1
  }
}

/// What a server has done.
struct ChatTally: Equatable, Sendable {
  var clients = 0
  var mostAtOnce = 0
  /// The lines that were sent to clients.
  var lines = 0
  var tooSlow = 0
}
#endif
