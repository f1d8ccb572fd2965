#if Demo
import Foundation

/// Why something could not be written, in the system's words.
struct OutputError: Error, Equatable, CustomStringConvertible {
  var name: String
  var code: Int32

  var description: String { "cannot write to \(name): \(DescriptorLimit.text(code))" }
}

/// A file descriptor to write text to, with what it can show and how wide it is.
///
/// Standard output and standard error are judged apart: `CoroutineDemo login > file` still shows live progress.
struct Output: Sendable {
  let descriptor: Int32
  let name: String
  let display: Display

  static func standardOutput(_ environment: [String: String] = ProcessInfo.processInfo.environment) -> Output {
    Output(descriptor: STDOUT_FILENO, name: "standard output", environment)
  }

  static func standardError(_ environment: [String: String] = ProcessInfo.processInfo.environment) -> Output {
    Output(descriptor: STDERR_FILENO, name: "standard error", environment)
  }

  init(descriptor: Int32, name: String, _ environment: [String: String]) {
    self.descriptor = descriptor
    self.name = name
    display = Display(isTerminal: isatty(descriptor) == 1, environment: environment)
  }

  /// Columns and rows now, since terminals are resized while programs run; 80 x 24 where nothing says otherwise.
  var size: (columns: Int, rows: Int) {
    var window = winsize()
    guard ioctl(descriptor, UInt(TIOCGWINSZ), &window) == 0, window.ws_col > 0, window.ws_row > 0 else {
      return (80, 24)
    }
    return (Int(window.ws_col), Int(window.ws_row))
  }

  /// Writes all of `text`, and blocks the thread for as long as the reader takes.
  func write(_ text: String) throws(OutputError) {
    var rest = Array(text.utf8)[...]
    while !rest.isEmpty {
      let count = rest.withUnsafeBytes { Foundation.write(descriptor, $0.baseAddress, $0.count) }
      if count >= 0 {
        rest = rest.dropFirst(count)
      } else if errno == EAGAIN {
        // Another program that shares the terminal has made it non-blocking.
        var ready = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
        poll(&ready, 1, -1)
      } else if errno != EINTR {
        throw OutputError(name: name, code: errno)
      }
    }
  }

  /// Writes what nobody misses if it cannot be written: progress, and the sentence said on the way out.
  func note(_ text: String) {
    try? write(text)
  }
}
#endif
