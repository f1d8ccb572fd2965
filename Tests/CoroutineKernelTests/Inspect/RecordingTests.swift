import CCoroutine
import CoroutineTesting
import Dispatch
import Foundation
import Testing

@testable import Coroutine

// In processes of their own, because there is one recorder.
@Suite("The flight recorder", .timeLimit(.minutes(10)))
struct RecordingTests {
  @Test func `a recording has the runs, the waits and an arrow from a wake-up to its run`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.startRecording()
      let (sender, receiver) = try await co_launch(on: DispatchQueue(label: "recorded \"queue\"\n")) {
        let channel = Channel<Int>()
        let receiver = co_launch { try channel.receive() }
        try co_yield()
        try channel.send(7)
        try receiver.join()
        return (Carrier.current!.pointee.job!.label.pointee.id, receiver.id)
      }.value
      CoroutineRuntime.stopRecording()
      let trace = try TraceDocument.read()
      let queue = try #require(trace.tracks[1]?.first { $0.value.hasPrefix("recorded ") }?.key)
      let name = try #require(trace.tracks[2]?[Int(receiver)])
      #expect(name.contains("#\(receiver) ") && name.contains("RecordingTests.swift:"))
      // What the receiver did, in order.
      let states = trace.slices(2, Int(receiver)).map(\.name)
      #expect(states == ["ready", "running", "waiting: receive", "ready", "running"], "\(states)")
      #expect(trace.slices(1, queue).filter { $0.name.hasPrefix("#\(receiver) ") }.count == 2)
      // The arrow begins where the sender runs, and ends where the receiver does.
      let arrow = try #require(trace.events.first { $0.ph == "s" && $0.args?["woken"] == .number(Double(receiver)) })
      #expect(arrow.args?["by"] == .number(Double(sender)))
      let head = try #require(trace.events.first { $0.ph == "f" && $0.id == arrow.id })
      #expect(head.ts! >= arrow.ts! && head.tid == queue)
      let run = try #require(trace.slices(1, queue).last { $0.name.hasPrefix("#\(receiver) ") })
      #expect(head.ts! >= run.ts! && head.ts! <= run.ts! + run.dur!)
    }
  }

  @Test func `a trace and the program do not end each other's recording`() async {
    await #expect(processExitsWith: .success) {
      // The program starts during a trace.
      CoroutineRuntime.beginTrace()
      #expect(CoroutineRuntime.isRecording)
      CoroutineRuntime.startRecording()
      CoroutineRuntime.endTrace()
      #expect(CoroutineRuntime.isRecording)
      // It stops during two others.
      CoroutineRuntime.beginTrace()
      CoroutineRuntime.beginTrace()
      CoroutineRuntime.stopRecording()
      #expect(CoroutineRuntime.isRecording)
      CoroutineRuntime.endTrace()
      #expect(CoroutineRuntime.isRecording)
      CoroutineRuntime.endTrace()
      #expect(!CoroutineRuntime.isRecording)
    }
  }

  @Test func `a recording has the parts of a Task, and its suspension once it has gone on`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.startRecording()
      let waiting = Locked<CheckedContinuation<Void, Never>?>(nil)
      let task = Task(executorPreference: WorkerPoolExecutor.shared) {
        await withCheckedContinuation { continuation in waiting.withLock { $0 = continuation } }
        _ = try? await co_launch {}.value
      }
      // Until the drain has ended: the event of the Task's suspension comes after the part no longer counts as running.
      while waiting.current == nil || WorkerPool.shared.workers.contains(where: { !$0.inbox.isIdle }) { sched_yield() }
      waiting.current?.resume()
      await task.value
      CoroutineRuntime.stopRecording()
      let trace = try TraceDocument.read()
      let tasks = try #require(trace.tracks[3])
      let number = try #require(tasks.keys.first)
      #expect(tasks == [number: "Task \(number)"])
      let states = trace.slices(3, number).map(\.name)
      let part = ["ready", "running"]
      #expect(states.starts(with: part + ["suspended"] + part), "\(states)")
      // On the track of the worker as well.
      let workers = trace.tracks[1]?.keys.flatMap { trace.slices(1, $0) }.filter { $0.name == "Task \(number)" }
      #expect(workers?.count == states.count { $0 == "running" })
    }
  }

  @Test func `a recording begins and ends while coroutines run, on workers, queues, loops, threads and in worlds`()
    async
  {
    await #expect(processExitsWith: .success) {
      #expect(try TraceDocument.read().events.allSatisfy { $0.ph == "M" })
      let talk: @Sendable () throws -> Void = {
        let channel = Channel<Int>()
        let other = co_launch(start: .immediate) { for _ in 0..<50 { _ = try channel.receive() } }
        for value in 0..<50 { try channel.send(value) }
        try other.join()
        try co_blocking {}
      }
      let loop = Loop()
      let scheduler = HostedScheduler(loop)
      for round in 0..<3 {
        if round == 1 { CoroutineRuntime.startRecording(bytesPerWorker: 1 << 16) }
        try await co_launch(on: DispatchQueue(label: "recorded.queue"), talk).value
        try await co_launch(talk).value
        try await co_launch(on: scheduler, talk).value
        try World(seed: 1).run(talk)
        if round == 1 { CoroutineRuntime.stopRecording() }
      }
      let trace = try TraceDocument.read()
      let labels = Set(trace.tracks[1]!.values)
      #expect(labels.isSuperset(of: ["recorded.queue", loop.coroutineLabel, "other threads"]), "\(labels)")
      #expect(labels.contains { $0.hasPrefix("coroutine.shared.") })
      #expect(labels.count >= 5, "\(labels)")
      // Each slice of a run is closed, and no run overlaps the next one on its track, but for immediate starts.
      #expect(trace.events.filter { $0.ph == "X" }.allSatisfy { $0.dur! >= 0 && $0.ts! >= 0 })
      #expect(trace.events.filter { $0.ph == "s" }.count > 40)
      // The runs of the first and the third round are not there: four launches in each of two coroutines.
      #expect(trace.tracks[2]!.count <= 16, "\(trace.tracks[2]!.count)")
      loop.end()
    }
  }

  @Test func `a small ring keeps the last events of many`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.startRecording(bytesPerWorker: 1_024)
      try await co_launch(on: DispatchQueue(label: "recorded.long")) {
        let other = co_launch { for _ in 0..<10_000 { try co_yield() } }
        for _ in 0..<10_000 { try co_yield() }
        try other.join()
      }.value
      CoroutineRuntime.stopRecording()
      let trace = try TraceDocument.read()
      let count = trace.events.filter { $0.ph == "X" && $0.pid == 1 }.count
      #expect(count > 8 && count <= 64, "\(count)")
    }
  }

  @Test(.enabled(if: !isSanitized)) func `without memory for rings the recording says so`() async {
    await #expect(processExitsWith: .success) {
      Recorder.start(bytes: 1 << 60)
      try await co_launch(on: DispatchQueue(label: "without a ring")) { for _ in 0..<100 { try co_yield() } }.value
      CoroutineRuntime.stopRecording()
      let mark = try #require(try TraceDocument.read().events.first { $0.ph == "i" })
      #expect(mark.name == "not recorded: other threads, without a ring")
    }
  }

  @Test func `recorded switches are counted once each, and leave timers and messages their turn`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.startRecording()
      let queue = DispatchQueue(label: "recorded.count")
      // The driver of two that always yield, which must poll in between.
      let (isDue, limit) = (Locked(false), ContinuousClock.now + .seconds(500))
      let yielding = (0..<2).map { _ in
        co_launch(on: queue) { while !isDue.current, ContinuousClock.now < limit { try co_yield() } }
      }
      try await co_launch(on: queue) { try co_delay(.milliseconds(1)) }.value
      #expect(ContinuousClock.now < limit)
      isDue.withLock { $0 = true }
      for job in yielding { try await job.value }

      let before = CoroutineRuntime.metrics.switches
      try await co_launch(on: queue) {
        let other = co_launch { for _ in 0..<10_000 { try co_yield() } }
        for _ in 0..<10_000 { try co_yield() }
        try other.join()
      }.value
      // The drain publishes its switches before it goes idle.
      while CoroutineRuntime.metrics.switches - before < 20_000, ContinuousClock.now < limit { await Task.yield() }
      let count = CoroutineRuntime.metrics.switches - before
      #expect(count >= 20_000 && count < 20_200, "\(count)")
    }
  }

  @Test func `a recording is read while it is written`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.startRecording(bytesPerWorker: 4_096)
      let jobs = (0..<8).map { _ in
        co_launch { while true { try co_yield() } }
      }
      for _ in 0..<20 { _ = try TraceDocument.read() }
      for job in jobs { job.cancel() }
      for job in jobs { _ = try? await job.value }
      // A second recording begins anew.
      CoroutineRuntime.stopRecording()
      CoroutineRuntime.startRecording()
      try await co_launch {}.value
      // A run is recorded at its end, which may be later than the end of the job.
      var tracks = try TraceDocument.read().tracks
      while tracks[2]?.isEmpty != false {
        await Task.yield()
        tracks = try TraceDocument.read().tracks
      }
      // The last runs of the jobs before may have ended since, one on each worker; those before them are gone.
      #expect(tracks[2]!.count < 8, "\(tracks)")
    }
  }
}

/// The document of a recording.
private struct TraceDocument: Decodable {
  struct Event: Decodable {
    let ph: String
    let pid: Int
    let tid: Int?
    let ts, dur: Double?
    let id: Int?
    let name: String
    let args: [String: Value]?
  }

  enum Value: Decodable, Equatable {
    case number(Double)
    case text(String)

    init(from decoder: any Decoder) throws {
      let container = try decoder.singleValueContainer()
      if let number = try? container.decode(Double.self) {
        self = .number(number)
      } else {
        self = .text(try container.decode(String.self))
      }
    }
  }

  let traceEvents: [Event]
  var events: [Event] { traceEvents }

  static func read() throws -> TraceDocument {
    try JSONDecoder().decode(TraceDocument.self, from: Data(CoroutineRuntime.recording()))
  }

  /// The names of the tracks of each process.
  var tracks: [Int: [Int: String]] {
    events.reduce(into: [:]) { tracks, event in
      guard event.name == "thread_name", case .text(let name)? = event.args?["name"] else { return }
      tracks[event.pid, default: [:]][event.tid!] = name
    }
  }

  func slices(_ process: Int, _ track: Int) -> [Event] {
    events.filter { $0.ph == "X" && $0.pid == process && $0.tid == track }.sorted { $0.ts! < $1.ts! }
  }
}
