#if Demo
import Coroutine
import Foundation

/// One run of `sequences`: shows each part that was asked for.
///
/// All of it happens on the main thread, off any coroutine: generators need neither a queue nor a scheduler.
struct SequencesRun {
  private let command: SequencesCommand
  private let output = Output.standardOutput()
  private let errors = Output.standardError()

  init(_ command: SequencesCommand) {
    self.command = command
  }

  /// nil: all went well.
  func run() -> ExitStatus? {
    do {
      for part in command.parts.isEmpty ? SequencesCommand.Part.allCases : command.parts { try show(part) }
      return nil
    } catch let error as OutputError {
      errors.note("CoroutineDemo: \(error).\n")
      return .notWritten
    } catch {
      errors.note("CoroutineDemo: ended by something unforeseen: \(error).\n")
      return .software
    }
  }

  private func show(_ part: SequencesCommand.Part) throws {
    switch part {
    case .fibonacci: try showFibonacci()
    case .fringe: try showFringes()
    case .permutations: try showPermutations()
    case .parser: try showParser()
    case .robot: try talk()
    }
  }

  private func say(_ line: String) throws { try output.write(line + "\n") }

  private func showFibonacci() throws {
    try say("fibonacci: \(fibonacci().prefix(command.count).map(String.init).joined(separator: " "))")
  }

  private func showFringes() throws {
    for (left, right) in [("coroutine", "coroutine"), ("coroutine", "cocoon"), ("generator", "general")] {
      guard let one = Tree.leaningLeft(left), let other = Tree.leaningRight(right) else { continue }
      let (isSame, looks) = compareFringes(one, other)
      try say("fringe: \(left) and \(right) \(isSame ? "agree" : "differ"), seen after \(looks) leaves")
    }
  }

  private func showPermutations() throws {
    let orders = permutations(of: Array(command.letters)).lazy.map { String($0) }
    try say("permutations: \(orders.joined(separator: " "))")
  }

  private func showParser() throws {
    let list = try BookList(bytes: command.size * 1_000_000)
    let stream = list.file.reader()
    let before = ProcessMemory.resident
    var (count, cents) = (0, 0)
    do {
      let books = books(in: xmlEvents(of: stream, blanks: false))
      for book in books.prefix(command.stop ?? .max) {
        count += 1
        cents += book.cents
      }
      if let failure = books.failure { throw failure }
    }
    if command.stop == nil && (count, cents) != (list.count, list.cents) {
      throw XMLFailure(line: 0, reason: "\(count) books were read, not \(list.count)")
    }
    try say("parser: \(count) of \(list.count) books, \(stream.bytesRead) of \(list.bytes) bytes read, \(cents) cents")
    let grown = max(0, ProcessMemory.peak - before)
    try say("parser: memory \(before / 1_000) kB before, at most \(grown / 1_000) kB more while reading")
  }

  /// Each line pokes the robot; at the end of the input it talks on by itself.
  private func talk() throws {
    let robot = robot(for: command.name)
    var command: String?
    while true {
      // An empty line sends nothing, which is not the same as sending nothing much.
      let step = try command.flatMap { $0.isEmpty ? nil : $0 }.map { try robot.step($0) } ?? robot.step()
      switch step {
      case .yielded(let sentence): try say("robot: \(sentence)")
      case .returned(let farewell): return try say("robot: \(farewell)")
      }
      if errors.display != .text { errors.note("> ") }
      command = readLine()
    }
  }
}
#endif
