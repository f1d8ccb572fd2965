import Coroutine
package import CoroutineNet
package import Foundation

extension Connection {
  /// Reads until the end of input.
  package func readAll() throws -> String {
    var bytes: [UInt8] = []
    while true {
      let part = try read(upTo: 64 << 10)
      if part.isEmpty { return String(decoding: bytes, as: UTF8.self) }
      bytes += part
    }
  }

  /// Reads until what was read ends with `text`.
  package func read(until text: String) throws -> String {
    var all = ""
    while !all.hasSuffix(text) {
      let part = try read(upTo: 1)
      if part.isEmpty { return all + "<end>" }
      all += String(decoding: part, as: UTF8.self)
    }
    return all
  }
}

/// What a program has printed, and its exit status.
package struct Ran: Sendable {
  package var output: String
  package var status: Int32
}

/// Runs a program on a thread for blocking calls.
package func run(_ program: String, _ arguments: [String], input: Data? = nil) throws -> Ran {
  try co_blocking {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
    process.arguments = [program] + arguments
    let output = Pipe()
    process.standardOutput = output
    process.standardError = FileHandle.nullDevice
    let source = Pipe()
    process.standardInput = input == nil ? FileHandle.nullDevice : source
    try process.run()
    if let input {
      // The programs here read all of their input before they print.
      try source.fileHandleForWriting.write(contentsOf: input)
      try source.fileHandleForWriting.close()
    }
    let data = try output.fileHandleForReading.readToEnd() ?? Data()
    process.waitUntilExit()
    return Ran(output: String(decoding: data, as: UTF8.self), status: process.terminationStatus)
  }
}

package func curl(_ arguments: String..., input: Data? = nil) throws -> Ran {
  try run("curl", ["--silent", "--max-time", "120"] + arguments, input: input)
}
