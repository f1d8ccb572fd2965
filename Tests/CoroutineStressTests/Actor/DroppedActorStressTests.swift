import Coroutine
import Dispatch
import Testing

/// Actors that are cancelled before they begin, while coroutines tell them more than their mailboxes hold.
@Suite("Stress: senders of actors that are dropped", .timeLimit(.minutes(10)))
struct DroppedActorStressTests {
  @Test func `every sender ends with the actor's end, and every message is undelivered once`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(300) {
      var random = stress.random(round)
      let (count, byJob) = (Int.random(in: 1...8, using: &random), Bool.random(using: &random))
      let gives = Bool.random(using: &random)
      // It does not run before the actor is dropped.
      let queue = DispatchQueue(label: "coroutine.stress.dropped")
      queue.suspend()
      let (told, undelivered) = (Census(), Census())
      let note: @Sendable (Int) -> Void = { _ in undelivered.change() }
      let actor = co_actor(of: Int.self, on: queue, mailbox: .bounded(2), onUndelivered: note) { _ in }
      let senders = (0..<count).map { number in
        co_launch {
          do {
            // More than there is room for, so it ends by an error.
            while true {
              told.change()
              try actor.tell(round)
            }
          } catch { return "\(type(of: error))" }
        }
      }
      try await onThreads(2) { thread in
        if thread == 0 {
          if byJob { actor.job.cancel() } else { actor.cancel() }
        } else if gives {
          senders[0].cancel()
        }
      }
      let result = await Task { try await actor.job.value }.result
      guard case .failure(is CancellationError) = result else {
        Issue.record("\(result), round \(round), \(stress.replay)")
        return queue.resume()
      }
      for (index, sender) in senders.enumerated() {
        let seen = await Task { try await sender.value }.result
        let isRight =
          switch seen {
          case .success("ActorStoppedError"): true
          case .success("CancellationError"), .failure(is CancellationError): index == 0 && gives
          default: false
          }
        #expect(isRight, "\(seen) of sender \(index), round \(round), \(stress.replay)")
      }
      await until(undelivered, shows: told.now)
      queue.resume()
    }
  }
}
