import Glibc

/// Measures in a new process of this very program, in which nothing has been touched yet.
enum FreshProcess {
  /// One round of the measurement that yields `figures`; empty: the process said that it cannot be done here.
  static func measure(_ figures: [Figure], _ options: Options) -> [Double] {
    let command = "'\(path)' --child --rounds 1 --only '\(figures[0].name)'\(options.isQuick ? " --quick" : "")"
    fflush(nil)
    guard let pipe = popen(command, "r") else { fail("cannot start \(command)") }
    var printed: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 4096)
    while case let count = fread(&buffer, 1, buffer.count, pipe), count > 0 { printed += buffer[..<count] }
    let status = pclose(pipe)
    expect(status == 0, "'\(command)' ended with status \(status)")
    let values = String(decoding: printed, as: UTF8.self).split(separator: "\n").compactMap { line in
      line.split(separator: "\t").dropFirst().first.flatMap { Double($0) }
    }
    return values.count == figures.count ? values : []
  }

  /// Where this program lies.
  ///
  /// Not /proc/self/exe itself, which in the new process would be the shell.
  private static var path: String {
    var buffer = [UInt8](repeating: 0, count: Int(PATH_MAX))
    let count = buffer.withUnsafeMutableBytes {
      readlink("/proc/self/exe", $0.bindMemory(to: CChar.self).baseAddress!, $0.count)
    }
    expect(count > 0, "/proc/self/exe can be read")
    return String(decoding: buffer[..<count], as: UTF8.self)
  }
}
