import Dispatch
import Foundation
import Testing

@testable import Coroutine

/// The last coroutines that have ended, in snapshots.
///
/// Each in a process of its own, because they are kept for the process.
@Suite("The last that have ended", .timeLimit(.minutes(10)))
struct EndedTests {
  private struct Broken: Error {}

  @Test func `a snapshot has each with its name, how it has ended and when, the latest first`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      CoroutineRuntime.unhandledErrorHandler = { _ in }
      let queue = taggedQueue("ends")
      try await co_launch(on: queue, name: "early") {}.value
      #expect(CoroutineRuntime.snapshot().ended.isEmpty)
      try await co_launch(on: queue, name: "good") { co_current.name = "very good" }.value
      _ = try? await co_launch(on: queue, name: "bad") { throw Broken() }.value
      let cancelled = co_launch(on: queue, name: "ugly") { try waitForCancellation() }
      settle(1)
      cancelled.cancel()
      _ = try? await cancelled.value
      queue.suspend()
      let dropped = co_launch(on: queue, name: "dropped") {}
      dropped.cancel()
      queue.resume()
      while CoroutineRuntime.liveCount > 0 { await Task.yield() }
      // The end of a dropped one is kept after it has left the list, by the same block of the queue.
      queue.sync {}
      let ended = CoroutineRuntime.snapshot().ended
      #expect(ended.map(\.name) == ["dropped", "ugly", "bad", "very good"])
      #expect(ended.map(\.ending) == [.cancelled, .cancelled, .failed, .succeeded])
      #expect(ended.map(\.error) == [nil, nil, "Broken", nil])
      #expect(ended.allSatisfy { $0.launchSite.contains("EndedTests.swift:") && $0.age < .seconds(600) })
      #expect(ended[0].id == dropped.id)
      let line = #/^#\d+ "bad" failed with Broken \d+ m?s ago, launched at .*EndedTests.swift:\d+$/#
      #expect(ended[2].line.contains(line))
    }
  }

  @Test func `the life of an actor that is restarted is one of them, and counted`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      EndedJobs.begin()
      let supervisor = Supervisor(on: taggedQueue("restarts"))
      let carts = supervisor.actor(of: Int.self, name: "carts") { mailbox in
        try mailbox.forEach { if $0 < 0 { throw Broken() } }
      }
      for message in [1, -1, 2, -2] { #expect(carts.tryTell(message) == .sent) }
      // A restart is counted before the end of the life is kept.
      while supervisor.restartCount < 2 || carts.count > 0 || EndedJobs.latest.count < 2 { await Task.yield() }
      let ended = CoroutineRuntime.snapshot().ended
      #expect(ended.count == 2 && ended.allSatisfy { $0.id == carts.job.id && $0.isRestarted })
      let line = #/^#\d+ "carts" failed with Broken and was restarted \d+ m?s ago, launched at .*EndedTests.swift:\d+$/#
      #expect(ended.allSatisfy { $0.line.contains(line) }, "\(ended.map(\.line))")
      let read = try JSONDecoder().decode([CoroutineRuntime.Snapshot.Ended].self, from: JSONEncoder().encode(ended))
      #expect(read.allSatisfy { $0.isRestarted })
      var json: [UInt8] = []
      CoroutineRuntime.snapshotJSON { json += $0 }
      let written = try JSONDecoder().decode(CoroutineRuntime.Snapshot.self, from: Data(json)).ended
      #expect(written.count == 2 && written.allSatisfy { $0.isRestarted })
      #expect(CoroutineRuntime.metrics.restarts == 2)
      #expect(CoroutineRuntime.metricsText.contains("\ncoroutine_actor_restarts_total 2\n"))
      supervisor.stop()
    }
  }

  @Test func `they are 256 at most, whichever queue has ended them, and outlive it`() async {
    await #expect(processExitsWith: .success) {
      EndedJobs.begin()
      for number in 0..<20 { try await co_launch(on: taggedQueue("brief"), name: "brief \(number)") {}.value }
      let first = CoroutineRuntime.snapshot().ended
      #expect(first.map(\.name) == (0..<20).reversed().map { "brief \($0)" })
      for number in 0..<40 {
        let jobs = (0..<16).map { co_launch(name: "many \(number * 16 + $0)") {} }
        for job in jobs { try await job.value }
      }
      let ended = CoroutineRuntime.snapshot().ended
      #expect(ended.count == 256 && Set(ended.map(\.id)).count == 256)
      #expect(ended.allSatisfy { $0.name?.hasPrefix("many") == true })
      #expect(zip(ended, ended.dropFirst()).allSatisfy { $0.age <= $1.age })
    }
  }

  @Test func `JSON has them as a snapshot encodes them`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.unhandledErrorHandler = { _ in }
      EndedJobs.begin()
      _ = try? await co_launch(name: "\"quoted\"\n") { throw Broken() }.value
      var data = Data()
      CoroutineRuntime.snapshotJSON { data.append(contentsOf: $0) }
      let read = try JSONDecoder().decode(CoroutineRuntime.Snapshot.self, from: data).ended
      #expect(read.map(\.name) == ["\"quoted\"\n"] && read.map(\.error) == ["Broken"])
      let again = try JSONDecoder().decode(
        CoroutineRuntime.Snapshot.self,
        from: JSONEncoder().encode(CoroutineRuntime.Snapshot(coroutines: [], ended: read))
      )
      #expect(again.ended.map(\.age) == read.map(\.age) && again.ended.map(\.id) == read.map(\.id))
    }
  }

  @Test func `worlds keep none, and see none`() async {
    await #expect(processExitsWith: .success) {
      EndedJobs.begin()
      let seen = try Simulation().run { () -> Int in
        try co_launch(name: "inside") {}.join()
        return CoroutineRuntime.snapshot().ended.count
      }
      #expect(seen == 0 && !CoroutineRuntime.snapshot().ended.contains { $0.name == "inside" })
    }
  }
}
