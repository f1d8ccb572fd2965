#if Demo
import Coroutine

/// Shows how the reading goes: bars that are redrawn on a terminal, a line for each feed elsewhere.
///
/// One coroutine owns the board and writes to the output; all it knows has come through `news`.
struct FeedDisplay: Sendable {
  private static let frame = Duration.milliseconds(80)
  let output: Output
  let news: Channel<FeedNews>

  /// Suspends until `news` is closed; returns what became of each of `count` feeds, nil for those not begun.
  func run(count: Int) throws -> [FeedReport?] {
    var board = FeedBoard(count: count)
    return output.display == .text ? try tell(&board) : try draw(&board)
  }

  private func tell(_ board: inout FeedBoard) throws -> [FeedReport?] {
    while let message = try news.receive() {
      board.take(message)
      if message.event == .ended { try write(Self.line(message.report)) }
    }
    return board.reports
  }

  /// What the display waits for.
  private enum Occasion {
    case frame
    case news(FeedNews)
    case end
  }

  private func draw(_ board: inout FeedBoard) throws -> [FeedReport?] {
    var picture = Picture()
    var next = ContinuousClock.now
    try write("\u{1B}[?25l")
    while true {
      // The frame comes first where both are ready, or a flood of news would keep the picture as it is.
      let occasion: Occasion = try co_select(biased: true) {
        SelectCase.onTimeout(next - .now) { .frame }
        news.onReceive { $0.map { .news($0) } ?? .end }
      }
      switch occasion {
      case .news(let message):
        board.take(message)
      case .frame:
        try write(picture.next(board, on: output))
        next = .now + Self.frame
      case .end:
        try write(picture.next(board, on: output) + "\u{1B}[?25h")
        return board.reports
      }
    }
  }

  /// The board as it was drawn last, to be drawn over.
  private struct Picture {
    private var frame = 0
    private var height = 0

    mutating func next(_ board: FeedBoard, on output: Output) -> String {
      let size = output.size
      let lines = board.lines(frame: frame, columns: size.columns, rows: size.rows, colour: output.display.hasColour)
      let up = height > 0 ? "\u{1B}[\(height)A" : ""
      (frame, height) = (frame + 1, lines.count)
      // Clears below too: the picture before may have been higher, and a Ctrl-C leaves its ^C there.
      return up + lines.map { "\r\u{1B}[2K\($0)\n" }.joined() + "\u{1B}[J"
    }
  }

  /// A terminal may be stopped, a pipe full: that must not hold up who reads feeds.
  private func write(_ text: String) throws {
    try co_blocking { [output] in output.note(text) }
  }

  private static func line(_ report: FeedReport) -> String {
    let numbers = "\(report.items) items, \(report.new) new, \(report.bytes.readableBytes), \(report.duration.readable)"
    return switch report.outcome {
    case .underWay, .read: "\(report.name): \(numbers)\n"
    case .unchanged: "\(report.name): not modified, \(report.duration.readable)\n"
    case .failed(let failure): "\(report.name): \(failure.brief); \(numbers)\n"
    }
  }
}
#endif
