import CTestSupport
import Foundation
import Testing

@testable import Coroutine

/// What the flight recorder writes when something happens.
///
/// Each in a process of its own, because there is one recorder; stalls are found by the real clock.
@Suite("Files of the flight recorder", .timeLimit(.minutes(10)), .tags(.realClock))
struct RecordingFileTests {
  @Test func `a stall is written about, with the events before it, four times at most`() async throws {
    let folder = try Folder()
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      [path = folder.path as String] in
      CoroutineRuntime.startRecording(bytesPerWorker: 1 << 14, filesIn: path)
      for number in 1...6 {
        let isOver = Flag()
        let stall = firstStall { co_launch(name: "hog") { while !isOver.isRaised {} } }
        #expect(stall.coroutine?.contains("hog") == true)
        while number <= 4, !Folder(path).names.contains("coroutine-\(getpid())-stall-\(number).json") { sched_yield() }
        isOver.raise()
        while CoroutineRuntime.liveCount > 0 { await Task.yield() }
      }
      // The thread that has given a file its name writes the line after that.
      while !cts_other_threads_sleep() { sched_yield() }
      #expect(Folder(path).names.count == 4, "\(Folder(path).names)")
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    #expect(text.split(separator: "\n").count { $0.hasPrefix("Coroutine: the recording before a stall is in /") } == 4)
    // The coroutine that stalls runs at the end of the recording.
    let documents = try folder.documents()
    #expect(documents.count == 4)
    #expect(documents.allSatisfy { $0.contains("RecordingFileTests") && $0.contains(#""name":"running""#) })
  }

  @Test func `a deadlock is written about, while there is a handler`() async throws {
    let folder = try Folder()
    await #expect(processExitsWith: .success) { [path = folder.path as String] in
      CoroutineRuntime.startRecording(bytesPerWorker: 1 << 14, filesIn: path)
      CoroutineRuntime.onDeadlock { _ in }
      Faults().lockInOppositeOrders()
      while !Folder(path).names.contains("coroutine-\(getpid())-deadlock-1.json") { sched_yield() }
    }
    // On a busy machine the loop above may be a stall, which is written about too.
    let documents = try folder.documents(of: "deadlock")
    #expect(documents.count == 1 && documents[0].contains("waiting: lock"), "\(folder.names)")
  }

  @Test(.enabled(if: !isSanitized), arguments: [true, false])
  func `a fatal signal is written about before the process ends, in a coroutine and on another thread`(
    _ isInCoroutine: Bool
  ) async throws {
    let folder = try Folder()
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      [path = folder.path as String, isInCoroutine] in
      setenv("COROUTINE_RECORD", path, 1)
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      try await co_launch(name: "earlier") { try co_yield() }.value
      if isInCoroutine { Faults().crash() } else { startThread { _ = Faults.parse([]) } }
      while true { sched_yield() }
    }
    let text = String(decoding: try #require(died).standardErrorContent, as: UTF8.self)
    #expect(text.contains("Coroutine: the recording before a signal is in \(folder.path)/coroutine-"), "\(text)")
    #expect(try folder.documents().count == 1 && folder.documents()[0].contains("RecordingFileTests"), "\(text)")
  }

  @Test(.enabled(if: !isSanitized)) func `a fatal signal that kill has sent is written about`() async throws {
    let folder = try Folder()
    await #expect(processExitsWith: .signal(SIGABRT)) { [path = folder.path as String] in
      CoroutineRuntime.startRecording(bytesPerWorker: 1 << 14, filesIn: path)
      try await co_launch(name: "earlier") { try co_yield() }.value
      kill(getpid(), SIGABRT)
      while true { sched_yield() }
    }
    #expect(try folder.documents(of: "signal").count == 1)
  }

  @Test(.enabled(if: !isSanitized))
  func `a fatal signal is written about also if nothing reads the line about a stall before it`() async throws {
    let folder = try Folder()
    await #expect(processExitsWith: .signal(SIGABRT)) { [path = folder.path as String] in
      alarm(300)
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      var ends: [Int32] = [-1, -1]
      guard pipe(&ends) == 0 else { exit(1) }
      _ = fcntl(ends[1], F_SETFL, O_NONBLOCK)
      while write(ends[1], [UInt8](repeating: 10, count: 4_096), 4_096) > 0 {}
      _ = fcntl(ends[1], F_SETFL, 0)
      dup2(ends[1], STDERR_FILENO)
      CoroutineRuntime.startRecording(bytesPerWorker: 1 << 14, filesIn: path)
      await stall()
      while !Folder(path).names.contains("coroutine-\(getpid())-stall-1.json") { sched_yield() }
      kill(getpid(), SIGABRT)
      while true { sched_yield() }
    }
    #expect(try folder.documents(of: "signal").count == 1)
  }

  @Test func `a file that is there stays, and a link in the place of a new one is not followed`() async throws {
    let folder = try Folder()
    await #expect(processExitsWith: .success) { [path = folder.path as String] in
      // What an earlier process of the same number has left, and what somebody else has put there.
      let (file, other) = ("\(path)/coroutine-\(getpid())-deadlock-", path + "/other")
      for older in [file + "1.json", other] { try "older".write(toFile: older, atomically: false, encoding: .utf8) }
      #expect(symlink(other, file + "1.json.part") == 0)
      CoroutineRuntime.startRecording(bytesPerWorker: 1 << 14, filesIn: path)
      CoroutineRuntime.onDeadlock { _ in }
      Faults().lockInOppositeOrders()
      while !FileManager.default.fileExists(atPath: file + "2.json") { sched_yield() }
      for older in [file + "1.json", other] {
        #expect(try String(contentsOfFile: older, encoding: .utf8) == "older", "\(older)")
      }
    }
  }

  @Test func `a request after the sixteenth is answered by a line`() async throws {
    let folder = try Folder()
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      [path = folder.path as String] in
      CoroutineRuntime.startRecording(bytesPerWorker: 1 << 14, filesIn: path)
      for _ in 1...17 { RecordingFiles.writeOnRequest() }
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    #expect(try folder.documents(of: "request").count == 16)
    #expect(text.contains("Coroutine: no recording is written: there were 16 requests already"), "\(text)")
  }

  @Test func `a folder that does not exist is named, and nothing else fails`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.startRecording(filesIn: "/nowhere\n")
      CoroutineRuntime.onDeadlock { _ in }
      var ends: [Int32] = [-1, -1]
      #expect(pipe(&ends) == 0)
      let standardError = dup(STDERR_FILENO)
      dup2(ends[1], STDERR_FILENO)
      Faults().lockInOppositeOrders()
      var (text, byte): (String, UInt8) = ("", 0)
      while !text.hasSuffix("\n"), read(ends[0], &byte, 1) == 1 { text.unicodeScalars.append(Unicode.Scalar(byte)) }
      dup2(standardError, STDERR_FILENO)
      #expect(text.contains(#"could not be written to /nowhere\n/coroutine-"#), "\(text)")
      #expect(text.hasSuffix("-deadlock-1.json: No such file or directory\n"), "\(text)")
    }
  }

  @Test func `without a folder, and when the recorder is off, nothing is written`() async throws {
    let folder = try Folder()
    await #expect(processExitsWith: .success) { [path = folder.path as String] in
      CoroutineRuntime.startRecording(filesIn: path)
      CoroutineRuntime.stopRecording()
      await stall()
      // The folder is that of a recording that the program has stopped.
      CoroutineRuntime.beginTrace()
      await stall()
      CoroutineRuntime.endTrace()
      CoroutineRuntime.startRecording()
      await stall()
      #expect(Folder(path).names.isEmpty)
    }
    #expect(folder.names.isEmpty)
  }
}

/// A folder of the test's own, which is removed with it.
private final class Folder {
  let path: String
  private let isOwned: Bool

  init() throws {
    // In memory where possible: a thread with a fatal signal waits for its file for five seconds at most, and a slow
    // disk may take as long.
    let isInMemory = FileManager.default.isWritableFile(atPath: "/dev/shm")
    let place = isInMemory ? URL(filePath: "/dev/shm/") : FileManager.default.temporaryDirectory
    path = place.appending(path: "coroutine-recordings-\(UUID())").path()
    isOwned = true
    try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
  }

  /// A folder that another one removes.
  init(_ path: String) { (self.path, isOwned) = (path, false) }

  deinit { if isOwned { try? FileManager.default.removeItem(atPath: path) } }

  var names: [String] {
    ((try? FileManager.default.contentsOfDirectory(atPath: path)) ?? []).filter { !$0.hasSuffix(".part") }.sorted()
  }

  /// The texts of the files about something, or of all files, each a JSON document.
  func documents(of what: String = "") throws -> [String] {
    try names.filter { $0.contains("-\(what)") }.map { name in
      let data = try Data(contentsOf: URL(filePath: path + "/" + name))
      #expect(try JSONSerialization.jsonObject(with: data) is [String: Any])
      return String(decoding: data, as: UTF8.self)
    }
  }
}

/// Has a coroutine keep its thread until that is reported; returns when it has ended, and the file about the stall, if
/// there is one, is written.
private func stall() async {
  let isOver = Flag()
  _ = firstStall { co_launch { while !isOver.isRaised {} } }
  isOver.raise()
  while CoroutineRuntime.liveCount > 0 { await Task.yield() }
  // The recorder's thread was woken before the report. It makes the whole recording before it opens a file.
  while !cts_other_threads_sleep() { sched_yield() }
}
