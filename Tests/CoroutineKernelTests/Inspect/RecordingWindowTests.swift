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
    var writer = TraceWriter(RecordedEvent.all(of: recording).events, from: start, end: 12_000, horizon: 0)
    let text = String(decoding: writer.write([]), as: UTF8.self)
    return text.split(separator: "\n").compactMap { line in
      guard line.contains("\"ph\""), !line.contains("process_name") else { return nil }
      let name = line.firstMatch(of: #/"name":"([a-z_: ]+)"/#)?.1 ?? "?"
      let time = line.firstMatch(of: #/"ts":([0-9.]+)/#)?.1
      let length = line.firstMatch(of: #/"dur":([0-9.]+)/#)?.1
      return "\(name) \(time ?? "-") \(length ?? "-")"
    }
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
