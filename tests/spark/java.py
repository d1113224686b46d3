"""How tests start Java: for a minute or two, several on a core."""

from spillway.spark.platform.session import SHORT_LIVED_JAVA

# Half of a short run is Java getting going. These are Spark's own classes: that they are well formed need not be proven
# each time. A Java that does not know the option any more starts without.
UNPROVEN = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
QUICK_JAVA = f"{SHORT_LIVED_JAVA} {UNPROVEN}"
