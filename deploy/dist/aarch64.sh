#!/bin/sh
# Usage: aarch64.sh FOLDER
# Makes FOLDER/bin/rustc: a compiler that has the standard library of aarch64, for
# building there from x86_64. rustup's, where that target is installed; else Debian's
# rustc-web, which is only unpacked. Debian's cross compiler links.
set -eu
folder=$1
target=aarch64-unknown-linux-gnu
# It is there already.
if "$folder/bin/rustc" -V >/dev/null 2>&1; then
    exit
fi
mkdir -p "$folder/bin"
if [ -d "$(rustc --print target-libdir --target $target)" ]; then
    ln -sf "$(command -v rustc)" "$folder/bin/rustc"
    exit
fi
# Lists of their own, so that the machine's packages know nothing of another
# architecture.
apt="$folder/apt"
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$folder/root"
cat >"$apt/conf" <<CONF
APT::Architectures { "amd64"; "arm64"; };
Dir::State::Lists "$apt/lists";
Dir::Cache "$apt/cache";
APT::Sandbox::User "root";
CONF
export APT_CONFIG="$apt/conf"
apt-get update -qq
needs() { apt-cache show --no-all-versions "$1" | sed -n "s/^Depends:.*\($2[^ ,]*\).*/\1/p"; }
std=$(apt-cache depends libstd-rust-web-dev | sed -n 's/.*Depends: \(libstd-rust-web-[0-9.]*\)$/\1/p' | head -n 1)
llvm=$(needs "$std" libllvm)
cd "$apt"
apt-get download -qq rustc-web libstd-rust-web-dev:amd64 libstd-rust-web-dev:arm64 "$std" $llvm
for package in *.deb; do
    dpkg -x "$package" "$folder/root"
done
rm -- *.deb
cat >"$folder/bin/rustc" <<RUSTC
#!/bin/sh
for llvm in "$folder"/root/usr/lib/llvm-*/lib; do libraries="\$llvm"; done
export LD_LIBRARY_PATH="$folder/root/usr/lib/x86_64-linux-gnu\${libraries:+:\$libraries}"
exec "$folder/root/usr/bin/rustc" --sysroot "$folder/root/usr" "\$@"
RUSTC
chmod +x "$folder/bin/rustc"
"$folder/bin/rustc" -V >/dev/null
