import Glibc

// Other programs, which tests start as children of their process.

/// Starts a program by posix_spawn; returns the number of its process, or nil if there is no such program.
func spawn(_ path: String, _ arguments: String...) -> pid_t? {
  var words: [UnsafeMutablePointer<CChar>?] = ([path] + arguments).map { word in strdup(word) }
  defer { for word in words { free(word) } }
  words.append(nil)
  var child = pid_t()
  return posix_spawn(&child, path, nil, nil, words, environ) == 0 ? child : nil
}

/// The folder of the test program, which also has the other programs of the package.
func folderOfTests() -> String {
  var path = [UInt8](repeating: 0, count: 4_096)
  let count = path.withUnsafeMutableBytes {
    readlink("/proc/self/exe", $0.baseAddress!.assumingMemoryBound(to: CChar.self), $0.count)
  }
  let parts = path.prefix(max(0, count)).split(separator: UInt8(ascii: "/")).dropLast()
  return "/" + parts.map { String(decoding: $0, as: UTF8.self) }.joined(separator: "/")
}
