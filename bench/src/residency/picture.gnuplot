# Throughput and tail latency by message size: gnuplot -e "data='FOLDER'; out='FOLDER'" picture.gnuplot
set logscale x 2
set xlabel 'message, KiB'
set xtics (4, 16, 64, 256, 1024)
set xrange [3:1400]
set grid ytics lc rgb '#dddddd'
set key top left Left reverse samplen 2 spacing 1.1

jet = '#1b6ca8'
following = '#2e9e5b'
own = '#c0392b'

do for [format in 'svg png'] {
    if (format eq 'svg') { set terminal svg size 1100,460 font 'sans,12' background 'white' }
    if (format eq 'png') { set terminal pngcairo size 1100,460 font 'sans,10' }
    set output out.'/residency.'.format
    set multiplot layout 1,2
    set title 'Throughput; dashed: memory hammered'
    set ylabel 'GB/s'
    set yrange [0:*]
    unset logscale y
    plot data.'/following-0' using 1:2 with linespoints lw 2 pt 7 lc rgb following title "Jet's pool, following the load", \
         data.'/following-1' using 1:2 with linespoints lw 2 pt 6 dt 2 lc rgb following notitle, \
         data.'/jet-0' using 1:2 with linespoints lw 2 pt 7 lc rgb jet title "Jet's pool, 12 MiB", \
         data.'/jet-1' using 1:2 with linespoints lw 2 pt 6 dt 2 lc rgb jet notitle, \
         data.'/conventional-0' using 1:2 with linespoints lw 2 pt 7 lc rgb own title 'buffers of each connection', \
         data.'/conventional-1' using 1:2 with linespoints lw 2 pt 6 dt 2 lc rgb own notitle
    set title 'P99.9 from submission to its end'
    set ylabel 'ms'
    set yrange [*:*]
    set logscale y
    plot data.'/following-0' using 1:($3/1000) with linespoints lw 2 pt 7 lc rgb following notitle, \
         data.'/following-1' using 1:($3/1000) with linespoints lw 2 pt 6 dt 2 lc rgb following notitle, \
         data.'/jet-0' using 1:($3/1000) with linespoints lw 2 pt 7 lc rgb jet notitle, \
         data.'/jet-1' using 1:($3/1000) with linespoints lw 2 pt 6 dt 2 lc rgb jet notitle, \
         data.'/conventional-0' using 1:($3/1000) with linespoints lw 2 pt 7 lc rgb own notitle, \
         data.'/conventional-1' using 1:($3/1000) with linespoints lw 2 pt 6 dt 2 lc rgb own notitle
    unset multiplot
}
