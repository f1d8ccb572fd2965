import Coroutine
import Dispatch
import Testing

@Suite("Stress: exclusivity", .timeLimit(.minutes(10)))
struct ExclusivityStressTests {
  private final class Box: @unchecked Sendable {
    // Sound because `held` is changed by the migrating coroutine alone and `used` by coroutines of one serial queue.
    var held = 0
    var used = 0
  }

  @inline(never)
  private static func change(_ value: inout Int, _ body: (inout Int) throws -> Void) rethrows {
    try body(&value)
  }

  @Test func `an inout access survives ten thousand migrations while others use the object`() async throws {
    let stress = Stress()
    let hops = stress.rounds(10_000)
    let box = Box()
    let queues = queues(4)
    let over = Census()
    let others = (0..<4).map { _ in
      co_launch(on: queues[0]) {
        var uses = 0
        while over.now == 0 {
          // Other accesses on the same threads, also around a suspension.
          Self.change(&box.used) { $0 += 1 }
          let own = Box()
          try Self.change(&own.held) { held in
            held += 1
            try co_yield()
          }
          uses += 1
        }
        return uses
      }
    }
    try await co_launch(on: queues[0]) {
      try Self.change(&box.held) { held in
        for hop in 1...hops {
          try co_switch(to: queues[hop % 4])
          held += 1
        }
      }
    }.value
    over.change()
    var uses = 0
    for other in others { uses += try await other.value }
    #expect(box.held == hops)
    #expect(box.used == uses)
  }

  @Test func `accesses that begin and end in any order on one thread never tear its list`() async throws {
    let stress = Stress()
    let rounds = stress.rounds(2_000)
    try await co_launch(on: queues(1)[0]) {
      var random = stress.random(0)
      for _ in 0..<rounds {
        let boxes = (0..<6).map { _ in Box() }
        let gates = boxes.map { _ in Promise<Void>() }
        let jobs = boxes.indices.map { n in
          co_launch {
            try Self.change(&boxes[n].held) { held in
              try co_await(gates[n])
              held += 1
            }
          }
        }
        if Bool.random(using: &random) { try co_yield() }
        for n in boxes.indices.shuffled(using: &random) {
          gates[n].fulfill(())
          if Bool.random(using: &random) { try jobs[n].join() }
        }
        for job in jobs { try job.join() }
        if boxes.contains(where: { $0.held != 1 }) { throw Mark(number: 1) }
      }
    }.value
  }
}
