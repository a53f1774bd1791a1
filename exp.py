import sys, runpy
import swiftchat.cuda.ops.decode_attention as d
import swiftchat.cuda.ops.linear as l
a=sys.argv
d._BLOCKS_PER_SM=int(a[1]); l.RING_SLOTS=int(a[2])
sys.argv=a[3:]
print("blocks",a[1],"slots",a[2],flush=True)
runpy.run_path(a[3],run_name="__main__")
