import Testing

@testable import Coroutine

@Suite("The last part of a recording", .timeLimit(.minutes(10)))
struct RecordingWindowTests {
  private func slices(from start: UInt64) throws -> [String] {
    let ring = try #require(EventRing("worker", number: 1, bytes: 4_096, recording: 1, start: 0))
    func event(_ kind: Events.Kind, _ id: UInt64, at time: UInt64, _ argument: UInt64 = 0) {
      ring.append(UInt64(kind.rawValue) | time << 8, id | argument << 32)
    }
    event(.launch, 1, at: 1_000)
    event(.launch, 2, at: 1_000)
    event(.run, 2, at: 1_500)
    event(.end, 2, at: 2_000)
    event(.run, 1, at: 2_000)
    event(.park, 1, at: 3_000, UInt64(WaitKind.receive.rawValue))
    event(.steal, 0, at: 4_000, 1)
    event(.wake, 1, at: 9_000)
    event(.run, 1, at: 9_500)
    event(.end, 1, at: 10_000)
    var recording = Recorder.Recording()
    (recording.rings, recording.end) = ([ring], (12_000, 12_000))
    var writer = TraceWriter(RecordedEvent.all(of: recording).events, from: start, end: 12_000)
    let text = String(decoding: writer.write([]), as: UTF8.self)
    return text.split(separator: "\n").compactMap { line in
      guard line.contains("\"ph\""), !line.contains("process_name") else { return nil }
      let name = line.firstMatch(of: #/"name":"([a-z_: ]+)"/#)?.1 ?? "?"
      let time = line.firstMatch(of: #/"ts":([0-9.]+)/#)?.1
      let length = line.firstMatch(of: #/"dur":([0-9.]+)/#)?.1
      return "\(name) \(time ?? "-") \(length ?? "-")"
    }
  }

  private typealias Event = (kind: Events.Kind, time: UInt64, argument: UInt64)

  /// The lines of a document about coroutine 1, with a ring for each list of its events.
  private func document(_ workers: [[Event]], bytes: Int = 4_096, from start: UInt64 = 0) throws -> [String] {
    var recording = Recorder.Recording()
    recording.end = (100_000, 100_000)
    recording.rings = try workers.enumerated().map { index, events in
      let ring = try #require(EventRing("worker", number: index + 1, bytes: bytes, recording: 1, start: 0))
      for event in events { ring.append(UInt64(event.kind.rawValue) | event.time << 8, 1 | event.argument << 32) }
      return ring
    }
    let (events, losses) = RecordedEvent.all(of: recording)
    var writer = TraceWriter(events, from: start, end: 100_000, losses: losses)
    return String(decoding: writer.write(recording.rings, without: ["c", "a"]), as: UTF8.self)
      .split(separator: "\n").map(String.init)
  }

  /// The states of coroutine 1, with their times and lengths.
  private func states(_ workers: [[Event]]) throws -> [String] {
    try document(workers).filter { $0.contains(#""ph":"X","pid":2,"tid":1,"#) }.map { line in
      let parts = try #require(line.firstMatch(of: #/"ts":([0-9.]+),"dur":([0-9.]+),"name":"([^"]+)"/#))
      return "\(parts.3) \(parts.1) \(parts.2)"
    }
  }

  @Test func `has no wait of a coroutine that was woken before its wait was stamped`() throws {
    let receive = UInt64(WaitKind.receive.rawValue)
    let waker: [Event] = [(.wake, 2_000, 0), (.run, 3_000, 0), (.end, 5_000, 0)]
    let late = try states([[(.run, 1_000, 0), (.park, 4_000, receive)], waker])
    #expect(late == ["running 1.000 1.000", "ready 2.000 1.000", "running 3.000 2.000"])
    let before = try states([[(.run, 1_000, 0), (.park, 2_500, receive)], waker])
    #expect(before == late)
    let onTime = try states([[(.run, 1_000, 0), (.park, 1_500, receive)], waker])
    #expect(
      onTime == ["running 1.000 0.500", "waiting: receive 1.500 0.500", "ready 2.000 1.000", "running 3.000 2.000"]
    )
  }

  @Test func `has a stolen coroutine as running, also if its yield was stamped after that`() throws {
    let thief: [Event] = [(.run, 2_000, 0), (.end, 4_000, 0)]
    let late = try states([[(.run, 1_000, 0), (.yield, 3_000, 0)], thief])
    #expect(late == ["running 1.000 1.000", "running 2.000 2.000"])
  }

  @Test func `says how much its rings have overwritten, unless it begins after that, and what has none`() throws {
    let busy: [Event] = (1...50).flatMap { [(.run, $0 * 1_000, 0), (.yield, $0 * 1_000 + 500, 0)] as [Event] }
    let small = try document([busy, [(.steal, 7_000, 1)]], bytes: 64 * EventRing.bytesOfEvent)
    let mark = #""ph":"i","s":"t","pid":1,"tid":1,"ts":19.500,"name":"37 events before this are overwritten""#
    #expect(small.filter { $0.contains("overwritten") } == ["{\(mark)},"], "\(small)")
    let later = try document([busy], bytes: 64 * EventRing.bytesOfEvent, from: 20_000)
    #expect(later.allSatisfy { !$0.contains("overwritten") })
    #expect(small.contains { $0.contains(#""ts":0.000,"name":"not recorded: a, c""#) }, "\(small)")
  }

  @Test func `begins at its time, with what goes on then, and without what has ended before`() throws {
    #expect(
      try slices(from: 5_000) == [
        "thread_name - -", "waiting: receive 5.000 4.000", "wake 9.000 -", "ready 9.000 0.500", "wake 9.500 -",
        "? 9.500 0.500", "running 9.500 0.500",
      ]
    )
  }

  @Test func `is all of it from zero on`() throws {
    let all = try slices(from: 0)
    #expect(all.filter { $0 == "thread_name - -" }.count == 2)
    #expect(all.contains("steal 4.000 -") && all.contains("waiting: receive 3.000 6.000"))
  }
}
