import Testing

@testable import Coroutine

/// An actor that is cancelled before it begins closes its mailbox in two steps: the cancellation refuses what comes
/// later, and a later call drops the messages and ends the waits of the senders (Channel+Transfer.swift).
@Suite("Actors: senders of an actor that is dropped", .timeLimit(.minutes(10)))
struct DroppedActorTests {
  /// What drops the actor.
  enum Route: CaseIterable, Sendable { case actor, job, supervisor }

  /// An actor that has not begun, three coroutines that wait for room in its mailbox, and one that has found room.
  ///
  /// `drop` is called while they wait, with the function that drops the actor; `ended` when they have ended.
  private static func drop(
    by route: Route,
    _ drop: @escaping @Sendable (ActorRef<Int>, [Job<String>], () -> Void) -> Void,
    ended: ([String], _ undelivered: [Int]) throws -> Void
  ) throws {
    let (made, began, undelivered) = (Locked<ActorRef<Int>?>(nil), Flag(), Locked<[Int]>([]))
    let (senders, supervisor) = (Locked<[Job<String>]>([]), Locked<Supervisor?>(nil))
    senders.current = (1...4).map { number in co_launch { outcome { try made.current!.tell(number) } } }
    let canceller = co_launch {
      guard let actor = made.current else { return }
      #expect(senders.current.map { $0.record.seemsWaiting } == [false, true, true, true])
      drop(actor, senders.current) {
        switch route {
        case .actor: actor.cancel()
        case .job: actor.job.cancel()
        case .supervisor: supervisor.current?.cancel()
        }
      }
    }
    // Launched last, so that neither begins before the canceller.
    let note: @Sendable (Int) -> Void = { number in undelivered.withLock { $0.append(number) } }
    if route == .supervisor {
      let parent = Supervisor()
      made.current = parent.actor(of: Int.self, mailbox: 1, onUndelivered: note) { _ in began.raise() }
      supervisor.current = parent
    } else {
      made.current = co_actor(of: Int.self, mailbox: 1, onUndelivered: note) { _ in began.raise() }
    }
    try canceller.join()
    // A sender that waits for ever ends the world with an error.
    let seen = try senders.current.map { try $0.join() }
    #expect(outcome { try made.current?.job.join() } == "CancellationError")
    #expect(!began.isRaised)
    try ended(seen, undelivered.current.sorted())
    senders.current = []
  }

  @Test(.inOneWorld, arguments: Route.allCases)
  func `those that wait get ActorStoppedError, and every message is undelivered once`(_ route: Route) throws {
    try onWorldQueue {
      try Self.drop(by: route) { actor, _, drop in
        drop()
        #expect(outcome { try actor.tell(5) } == "ActorStoppedError")
      } ended: { seen, undelivered in
        #expect(seen == ["()", "ActorStoppedError", "ActorStoppedError", "ActorStoppedError"])
        #expect(undelivered == [1, 2, 3, 4, 5])
      }
    }
  }

  @Test(.inOneWorld, arguments: [Route.job, .supervisor])
  func `a sender that is cancelled in between gets its own error, the others ActorStoppedError`(
    _ route: Route
  ) throws {
    try onWorldQueue {
      try Self.drop(by: route) { _, senders, drop in
        drop()
        senders[2].cancel(Oops("gone"))
      } ended: { seen, undelivered in
        #expect(seen == ["()", "ActorStoppedError", "Oops(gone)", "ActorStoppedError"])
        #expect(undelivered == [1, 2, 3, 4])
      }
    }
  }
}
